"""Advantage: how a completion's reward becomes the weight of each of its tokens."""

from algorithms.axes.baseline import (
    Accepted,
    BatchScaled,
    GroupCentred,
    GroupCentredWhitened,
    GroupStandardised,
    LeaveOneOut,
    PassAtK,
)
from algorithms.axes.returns import GAE, LengthAdaptiveGAE, Returns, WhitenedReturns

Advantage = (
    GroupStandardised
    | GroupCentred
    | LeaveOneOut
    | BatchScaled
    | GroupCentredWhitened
    | PassAtK
    | Accepted
    | Returns
    | WhitenedReturns
    | GAE
    | LengthAdaptiveGAE
)
