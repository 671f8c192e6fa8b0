"""Published RL objectives for language models, one file each, as data that can be printed and compared."""
