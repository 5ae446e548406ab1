"""Hidden groups of rows inside every site: FedGrEM, and the methods it is compared with.

A site has `weights` (R), `components` (R, p: means or coefficients) and a `scale` (variances or
noise; None where it is given). `families` holds what differs between Gaussian mixtures and mixtures
of regressions, `sites` and `coordinator` what the methods share at the sites and at the server,
`result` what a fit is. Start reading at `fedgrem`: FedEM and TGMM have its rounds with another
central update, `local_em` does without a server, `fedgmm` has a richer model.
"""
