"""The four ways in which sites can differ: python docs/pictures/four_differences.py."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

COLOURS = ("#0072b2", "#d55e00", "#009e73")


def main(target: Path) -> None:
    rng = np.random.default_rng(1)
    figure, (kinds, degrees, curves, inside) = plt.subplots(
        1, 4, figsize=(11, 2.9), layout="constrained"
    )
    x = np.linspace(0, 1, 50)
    for k in range(12):
        kind = k % 3
        slope, level = (1.5, 0.0, -1.5)[kind], (0.0, 1.0, 2.0)[kind]
        line = level + slope * x + 0.05 * rng.normal()
        kinds.plot(x, line, color=COLOURS[kind], alpha=0.7)
        degrees.plot(x, 0.5 + (1 + 0.45 * rng.normal()) * x + 0.2 * rng.normal(), color="0.55")
        if k < 6:
            phase = rng.normal()
            curve = np.sin(5 * x + phase) + 0.4 * np.sin(9 * x + 2 * phase)
            curves.plot(x, curve, color=COLOURS[0], alpha=0.6)
    degrees.plot(x, 0.5 + x, color="black", lw=2.5)
    for k, colour in enumerate(COLOURS):
        centre = np.array([[0, 0], [3, 1], [1, 3]])[k]
        points = centre + 0.6 * rng.normal(size=(40, 2))
        inside.plot(*points.T, ".", color=colour, ms=4)
    words = ("by kind\nFMLR, ODCL", "by degrees\nMixedModel", "in curves\nFGPR")
    for axes, title in zip((kinds, degrees, curves), words):
        axes.set(title=title, xticks=[], yticks=[], xlabel="a line is a site")
    inside.set(
        title="inside: hidden groups\nFedGrEM", xticks=[], yticks=[], xlabel="a dot is a row"
    )
    figure.savefig(target, dpi=110)


if __name__ == "__main__":
    main(Path(__file__).with_suffix(".png"))
