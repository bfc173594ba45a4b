"""Random search over (α, κ): evolution whose first pool is all there is."""

from dataclasses import replace

from legr_cli.pruning import Study
from legr_cli.search.learn import Way, evolving
from legr_cli.settings import Search


def drawn(known: Study, settings: Search) -> Way:
    """The identity, and then every layer of every candidate at random."""
    return evolving(known, replace(settings, start="random", population=settings.candidates))
