"""Does a model suffer when replicas come and go? The experiment, its model, and what its stored runs say."""
