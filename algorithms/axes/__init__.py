"""The axes along which published objectives differ; each component is one small class with its own knobs."""
