"""A schedule on real ranks: the loop over its list, what a stage keeps, and the messages between stages."""
