"""Random search over (α, κ): evolution whose first pool is all there is."""

from dataclasses import replace

from legr_cli.pruning import Analysis
from legr_cli.search.run import Strategy, evolution_strategy
from legr_cli.settings import Search


def drawn(analysis: Analysis, settings: Search) -> Strategy:
    """The identity, and then every layer of every candidate at random."""
    return evolution_strategy(
        analysis, replace(settings, start="random", population=settings.candidates)
    )
