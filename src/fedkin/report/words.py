"""What the numbers on a page mean: an explanation for every column and picture."""

from __future__ import annotations

# Ways of sharing that are tried where nobody chose one, in words.
WAYS = {
    "alone": "every site by itself",
    "one model": "one model for all sites",
    "by degrees": "a model for each site, around a common one",
    "by degrees, own noise": "a model and a noise for each site, around common ones",
    "by kind": "sites of a few kinds",
    "common curve": "a curve for each site, around a common one",
    "groups": "groups of rows that mean the same at every site",
    "groups, own variances": "groups of rows that mean the same at every site",
}
COLUMNS = {
    "site": "The site's name.",
    "rows": "Rows of data that the site has.",
    "group": "The regression that the site follows most probably.",
    "cluster": "The kind that the site belongs to.",
    "prior": "The prior that fits the site's curve best.",
    "probability": "How sure it is that the site belongs to this group; 1 is certain.",
    "log likelihood per row": "How well the model explains the site's rows; the higher, the "
    "better.",
    "odd": "Whether the site fits with none of the others.",
    "set aside": "Whether the site was kept from counting, because it is far from all others.",
    "own": "Whether the site predicts with hyper-parameters of its own.",
    "jitter": "What had to be added to make a matrix invertible; 0 is best.",
    "outlier score": "How unlike the others the site is; about standard normal for one that is "
    "not.",
    "groups ambiguous": "Whether the site's groups could be matched to the others' in another way.",
    "distance to cluster": "How far the site's own model is from that of its kind.",
    "gain": "How much better joining predicts rows of the site that were left out than staying "
    "alone; above 0 joining helps.",
    "low": "Lower end of the interval.",
    "high": "Upper end of the interval.",
    "field": "Name of what was sent.",
    "what it is": "What it means, as declared in the method; nothing else can leave a site.",
    "bytes up": "Bytes that left all sites together.",
    "bytes down": "Bytes that came to all sites together.",
    "a site sent": "Bytes that left one site, on average.",
    "weight": "Its share: of the sites that follow it, or of a prediction that combines several.",
    "way": "A way of sharing that was tried.",
    "best way": "The way with the largest weight at this site.",
    "point": "Weight in the prediction of a single number, by squared errors of left-out rows.",
    "left-out log score": "Mean log density of rows that the fit had not seen; the higher, the "
    "better.",
    "left-out rmse": "Root mean squared error at rows that the fit had not seen, at the median "
    "site.",
    "left-out error": "Share of wrong classes at rows that the fit had not seen.",
    "sites won": "Sites at which this way has the largest weight.",
    "weight at new sites": "Its weight at a site that was not in the fit.",
    **dict.fromkeys(WAYS, "Weight of this way in the predictions at the site."),
    "component": "Number of the regression; the one with the most sites is 0.",
    "identified": "Whether any site belongs to it.",
    "sites": "How many sites belong to it.",
    "intercept": "Value at zero of all features.",
    "estimate": "The common coefficient.",
    "se": "Standard error: how far the estimate may be off by chance.",
    "df": "Degrees of freedom (Satterthwaite): rows that speak for the estimate.",
    "t": "Estimate over its standard error.",
    "term": "Column whose common effect it is.",
    "std. error": "Standard error: how far the estimate may be off by chance.",
    "95 % from": "Lower end of the 95 % interval.",
    "to": "Upper end of the 95 % interval.",
    "is": "What the number is.",
    "p": "Probability of an estimate so far from zero if the effect were zero.",
    "n_components": "Number of regressions that was tried.",
    "n_clusters": "Number of kinds that was tried.",
    "n_priors": "Number of priors that was tried.",
    "loglik": "Log likelihood: how well the data are explained; the higher, the better.",
    "bic": "Fit with a price for every parameter; the lowest wins.",
    "location": "Mean of the site's target.",
    "scale": "Spread of the site's target.",
}
BEGINNINGS = {
    "weight ": "Share of this group among the site's rows.",
    "se ": "Standard error of the number beside it.",
    "mean ": "Centre of the group in this column.",
    "coef": "Effect of this column on the target.",
    "length": "How far one has to go until the curve forgets where it was.",
    "noise": "Standard deviation that no curve explains.",
}
CARDS = {
    "sites": "Sites that took part.",
    "rows": "Rows at all sites together; none of them left its site.",
    "n_components": "Number of groups that the model has.",
    "n_clusters": "Number of kinds of sites.",
    "n_priors": "Number of priors for the sites' curves.",
    "sigma": "Noise: standard deviation of the target that the model does not explain.",
    "noise": "Standard deviation of the target about the curve, in standardised units.",
    "loglik": "Log likelihood: compare it between models of the same data; the higher, the better.",
    "log_marginal_likelihood": "Log likelihood of all rows under what the sites use.",
    "bic": "Bayesian information criterion: the lower, the better.",
    "aic": "Akaike's information criterion: the lower, the better.",
    "icc": "Share of the variance that lies between sites; 0 means that sites do not differ.",
    "n_rounds": "How often every site was asked.",
    "bytes a site": "What an average site sent in all rounds together.",
    "odd sites": "Sites that fit with none of the others; look at their data first.",
    "joining helps": "Sites whose left-out rows are predicted better by joining than alone.",
}


def of_column(name: str) -> str:
    """What a column means; one named after a feature is that feature's coefficient."""
    if name in COLUMNS:
        return COLUMNS[name]
    for beginning, words in BEGINNINGS.items():
        if name.lower().startswith(beginning):
            return words
    return f"Coefficient of (or value for) {name}."


def of_card(name: str) -> str:
    """What a number at the top means."""
    return CARDS.get(name, name.replace("_", " "))
