"""Objective: the sum type of the families. A run holds exactly one."""

from algorithms.axes.imitation import Imitation
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.preference import Preference

Objective = PolicyGradient | Preference | Imitation
