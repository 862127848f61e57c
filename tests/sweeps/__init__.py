"""Every place of a scenario times all that may go wrong there; ``make test`` runs a sample and prints its seed."""
