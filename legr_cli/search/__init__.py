"""Learning a ranking: explorers, fitness functions, workers, the journal and the search loop."""
