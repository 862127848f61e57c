"""Care of a log and its bucket: check, restore, rejoin, advice, inspection. Each looks first and says what it would do."""
