"""Tasks: one file is one task; the module's name is the task's name. Knows neither `algorithms` nor `bench`."""
