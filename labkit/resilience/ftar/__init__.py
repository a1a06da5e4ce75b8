"""FTAR, the all-reduce across replicas that survives the loss of one: `ft_all_reduce`, and a queue of them, `Ftar`."""
