"""In-memory clusters for `plan` and the tests: they answer requests as a real apiserver would."""
