"""Update rules, and what large batches ask of them."""
