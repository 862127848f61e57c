"""Care of a log and its bucket: check, restore, rejoin, advice, inspection."""
