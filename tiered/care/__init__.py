"""Care of a log and its bucket: check, restore, rejoin, advice, a look inside. Each looks first and says what it would do."""
