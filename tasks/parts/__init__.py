"""What tasks are made of: problems and grades, split rules, answer extraction, number reading, the verifier."""
