from labkit.book.turns import in_turn as in_turn
