"""The engine: configuration, models, sampling, training, evaluation, meters and run directories."""
