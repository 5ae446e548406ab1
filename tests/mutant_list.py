"""The mutants: one broken line each, and the tests that must notice."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A text that stands once in a file below src/fedkin, what it becomes, and who must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


PROTOCOL = ("tests/maths/test_protocol.py",)
KINDS = ("tests/maths/models/test_kinds_degrees.py",)
DEGREES_OF_KINDS = ("tests/maths/test_fmlr_degrees.py",)
GROUPED = ("tests/maths/test_grouped_regression.py",)
SANDWICH = ("tests/maths/models/test_sandwich.py",)
COMPONENT_ERRORS = ("tests/maths/models/test_component_errors.py",)
MISFIT = ("tests/maths/models/test_misfit.py",)
IMPLAUSIBLE = ("tests/discordant/test_implausible_sites.py",)

MUTANTS = (
    Mutant(
        "gate without the negative side of the bound",
        "protocol/gate.py",
        "array.max() <= declared.bound and array.min() >= declared.lowest",
        "array.max() <= declared.bound",
        PROTOCOL,
    ),
    Mutant(
        "quorum not met by exactly its share",
        "engines/driver.py",
        "n_answered < rules.quorum",
        "n_answered <= rules.quorum",
        PROTOCOL,
    ),
    Mutant(
        "misses counted in total instead of running",
        "engines/driver.py",
        "self.misses.get(k, 0) + 1 if missed else 0",
        "self.misses.get(k, 0) + missed",
        PROTOCOL,
    ),
    Mutant(
        "BIC of FMLR without the noise",
        "algorithms/fmlr.py",
        "free = n_components * d + (settings.sigma is None)",
        "free = n_components * d",
        GROUPED,
    ),
    Mutant(
        "BIC of FMLR without the weights",
        "algorithms/fmlr.py",
        "free += final.weights.shape[1] - 1 if settings.weights is None else 0",
        "free += 0",
        GROUPED,
    ),
    Mutant(
        "BIC of departures without their covariance",
        "algorithms/fmlr_degrees.py",
        "found.n_covariance + found.n_noise",
        "found.n_noise",
        DEGREES_OF_KINDS,
    ),
    Mutant(
        "kinds that need no rows of their own",
        "algorithms/fmlr_degrees.py",
        "return len(n_rows) == 1 or bool(enough.all())",
        "return True",
        DEGREES_OF_KINDS,
    ),
    Mutant(
        "noises that may stand for levels",
        "algorithms/fmlr_degrees.py",
        "self._expected(chosen) <= (1.0 + AS_GOOD) * self._expected_of_levels()",
        "self._expected(chosen) <= 1e9 * self._expected_of_levels()",
        DEGREES_OF_KINDS,
    ),
    Mutant(
        "a smoother's trace without what departures take of the common model",
        "models/expected_errors.py",
        "twice = gram - 2.0 * taken + pulled @ taken",
        "twice = gram - taken",
        ("tests/maths/models/test_expected_errors.py",),
    ),
    Mutant(
        "what rounding leaves of an information that cancels counts",
        "models/sandwich.py",
        "np.abs(np.diagonal(total)) > NOTHING_KNOWN * added",
        "np.abs(np.diagonal(total)) >= 0.0 * added",
        ("tests/maths/models/test_sandwich.py",),
    ),
    Mutant(
        "few rows send sites away",
        "algorithms/better_off.py",
        ">= 2 * len(covariance) + 1",
        ">= 0",
        ("tests/maths/test_better_off.py",),
    ),
    Mutant(
        "slopes that are given away for nothing",
        "algorithms/mixed_model_linear_facts.py",
        "none + 2.0 * (fit.rank + 1)",
        "none",
        ("tests/maths/test_better_off.py",),
    ),
    Mutant(
        "fewer clusters stand by 2 % alone",
        "algorithms/better_off.py",
        "if fewer and len(worse) > 1:",
        "if False:",
        ("tests/maths/test_sites_stay_alone.py",),
    ),
    Mutant(
        "a strength for all that leaves nobody a row",
        "models/ridge_choice.py",
        "(spare >= COMMON_SPARE)",
        "(spare >= -1e9)",
        ("tests/maths/test_sites_stay_alone.py",),
    ),
    Mutant(
        "weights that scale features only",
        "models/weighted_rows.py",
        "return X * root[:, None], y * root,",
        "return X * root[:, None], y,",
        ("tests/maths/test_weighted_rows.py",),
    ),
    Mutant(
        "slope of the noise of kinds that depart without its rows",
        "models/kinds_degrees.py",
        "(square / variance - prepared.n_rows)",
        "(square / variance)",
        KINDS,
    ),
    Mutant(
        "likelihood of own noise without the prior's constant",
        "models/kinds_degrees.py",
        "loglik += gammaln(power) - gammaln(a)",
        "loglik += gammaln(power)",
        KINDS,
    ),
    Mutant(
        "proportions of kinds without their constraint",
        "models/kinds_degrees.py",
        "share.sum(axis=1) - share.shape[1] * np.exp(log_weights)",
        "share.sum(axis=1)",
        KINDS,
    ),
    Mutant(
        "a new site's departure without the correction for fitted kinds",
        "models/kinds_prediction.py",
        "clients / max(clients - K, 1.0), 1.0)",
        "1.0, 1.0)",
        KINDS,
    ),
    Mutant(
        "odd departures judged by a spread that odd sites widened",
        "inference/misfit_rules.py",
        "if fitted and typical > FAR_TOO_WIDE:",
        "if fitted:",
        ("tests/maths/test_odd_sites.py",),
    ),
    Mutant(
        "possible() without the intercept check",
        "models/least_squares.py",
        "fine &= np.abs(diagonal[-2] - n) <= POSSIBLE_SLACK * n",
        "pass",
        IMPLAUSIBLE,
    ),
    Mutant(
        "weighted sums whose counts need not add to one",
        "algorithms/fmlr_expectation.py",
        "fine &= np.all(np.abs(counts.sum(axis=2) - 1) <= POSSIBLE_SLACK, axis=1)",
        "pass",
        IMPLAUSIBLE,
    ),
    Mutant(
        "age of a standing reply",
        "algorithms/fmlr_expectation.py",
        "stands = age < np.ceil",
        "stands = age <= np.ceil",
        GROUPED,
    ),
    Mutant(
        "odd sites without Bonferroni",
        "inference/misfit_rules.py",
        "FAMILY_LEVEL / heard.sum()",
        "FAMILY_LEVEL",
        ("tests/maths/test_odd_sites.py",),
    ),
    Mutant(
        "doubt without the fitted reference's correction",
        "alignment.py",
        "variance = correction * typical /",
        "variance = typical /",
        (
            "tests/maths/test_alignment_doubt.py::test_two_sites_know_that_their_middle_is_drawn_to_them",
        ),
    ),
    Mutant(
        "GP scale gradient without the jitter",
        "models/gaussian_process.py",
        "(noise + jitter) * by_noise",
        "noise * by_noise",
        (
            "tests/maths/models/test_gp_prediction.py::test_gradient_by_the_scale_where_jitter_stands_for_noise",
        ),
    ),
    Mutant(
        "gap test beaten by one law",
        "clustering/choice.py",
        "score = min(",
        "score = max(",
        ("tests/maths/clustering/test_choice.py::test_evenly_spaced_points_are_one_cluster",),
    ),
    Mutant(
        "F law's variance",
        "clustering/scatter.py",
        "(nu - 4.0)",
        "(nu - 2.0)",
        ("tests/maths/clustering/test_scatter.py",),
    ),
    Mutant(
        "a row left out stays in its group's mean",
        "models/left_out_rows.py",
        "away = 1.0 / np.square(1.0 - np.minimum(leverage, MOST_OF_GROUP))",
        "away = np.ones_like(leverage)",
        ("tests/maths/test_borrowed.py::test_rows_left_out_are_those_of_a_fit_without_them",),
    ),
    Mutant(
        "starts compared as one mixture for all",
        "algorithms/mixtures/departures.py",
        "tied_order(-reached)[: len(left) // 2]",
        "np.arange(len(left) // 2)",
        (
            "tests/maths/test_borrowed.py::test_groups_that_sites_share_are_preferred_to_kinds_of_sites",
        ),
    ),
    Mutant(
        "step halvings rounded down",
        "algorithms/mixtures/fedgrem.py",
        "np.ceil(np.log2(",
        "np.floor(np.log2(",
        (
            "tests/maths/test_fedgrem_options.py::test_steps_converge_on_a_bowl_and_are_halved_no_more_than_that_needs",
        ),
    ),
    Mutant(
        "predictive density without the Jacobian",
        "models/curves.py",
        "self.curve.log_density(X, standard) - np.log(self.scale)",
        "self.curve.log_density(X, standard)",
        (
            "tests/maths/models/test_gp_prediction.py::test_mean_and_deviation_are_those_of_the_density",
        ),
    ),
    Mutant(
        "mixture of priors without the spread of means",
        "models/gp_posterior.py",
        "(variance + (mean - centre) ** 2)",
        "variance",
        (
            "tests/maths/models/test_gp_prediction.py::test_mean_and_deviation_are_those_of_the_density",
        ),
    ),
    Mutant(
        "theory's factor 3",
        "algorithms/fgpr_sites.py",
        "THEORY_SHARE = 3.0",
        "THEORY_SHARE = 1.0",
        ("tests/maths/test_fgpr_steps.py::test_a_local_step_is_the_papers_gradient",),
    ),
    Mutant(
        "settle without the priors' weights",
        "algorithms/fgpr_sites.py",
        'prior_responsibilities(value, np.log(common["weights"]))',
        'prior_responsibilities(value, 0.0 * common["weights"])',
        ("tests/maths/test_fgpr_steps.py::test_sites_settle_by_bayes_rule",),
    ),
    Mutant(
        "certificate radius sqrt(gap)",
        "clustering/convex.py",
        "np.sqrt(2.0 * gap / groups.sizes)",
        "np.sqrt(gap / groups.sizes)",
        ("tests/maths/clustering/test_certificates.py",),
    ),
    # alignment
    Mutant(
        "alignment by squared distances",
        "alignment.py",
        "table = cdist(points[left], points[right])",
        'table = cdist(points[left], points[right], "sqeuclidean")',
        (
            "tests/maths/test_alignment.py::test_all_of_200_draws_of_the_papers_assumption_are_right",
        ),
    ),
    Mutant(
        "aligned order by the last coordinate",
        "alignment.py",
        "zip(reference.T, rounding))[::-1]",
        "zip(reference.T, rounding))",
        (
            "tests/maths/test_alignment.py::test_aligned_components_come_in_the_order_of_the_reference",
        ),
    ),
    Mutant(
        "cycles need a step of a quarter of the slack",
        "alignment.py",
        "2 * steps.min(",
        "4 * steps.min(",
        (
            "tests/maths/test_alignment_doubt.py::test_another_labelling_within_the_slack_is_found_whatever_its_steps",
        ),
    ),
    Mutant(
        "doubt at the root of the odds",
        "alignment.py",
        "2 * log(CLEAR_ODDS) * variance",
        "log(CLEAR_ODDS) * variance",
        ("tests/maths/test_alignment_doubt.py",),
    ),
    Mutant(
        "doubt blind to a site's own distance",
        "alignment.py",
        "np.maximum(np.median(squares), np.median(squares, axis=1))",
        "np.full(len(squares), np.median(squares))",
        ("tests/maths/test_alignment.py::test_a_site_far_from_everything_is_ambiguous",),
    ),
    # shrinkage
    Mutant(
        "outlier score of another width",
        "shrinkage/outlier.py",
        "2.0 / (9.0 * some)",
        "2.0 / (3.0 * some)",
        ("tests/maths/test_shrinkage.py::test_honest_sites_score_about_standard_normal",),
    ),
    Mutant(
        "radius without the room for chance",
        "shrinkage/spread.py",
        "radii = (np.sqrt(n_features) + 1.0) *",
        "radii = np.sqrt(n_features) *",
        ("tests/maths/test_shrinkage.py::test_centre_and_spread_solve_their_two_equations",),
    ),
    Mutant(
        "prior odds m instead of m squared",
        "shrinkage/spread.py",
        "np.square(np.asarray(n_estimates, dtype=float))",
        "np.asarray(n_estimates, dtype=float)",
        (
            "tests/maths/test_shrinkage.py::test_the_refined_spread_is_closer_to_the_truth_than_the_median",
        ),
    ),
    Mutant(
        "evidence without the rival's spread",
        "shrinkage/spread.py",
        "(excess - 1 - np.log(excess))",
        "(excess - 1)",
        (
            "tests/maths/test_shrinkage.py::test_the_refined_spread_is_closer_to_the_truth_than_the_median",
        ),
    ),
    Mutant(
        "spread weighted by precision once",
        "shrinkage/spread.py",
        "belongs * precision**2",
        "belongs * precision",
        ("tests/maths/test_spread.py",),
    ),
    Mutant(
        "one feature like many",
        "shrinkage/spread.py",
        "float(n_features) if n_features > 1 else",
        "float(n_features) if n_features > 0 else",
        ("tests/maths/test_spread.py",),
    ),
    Mutant(
        "upper median for the median",
        "shrinkage/huber.py",
        "(ordered[rows, below] + ordered[rows, above]) / 2",
        "ordered[rows, above]",
        (
            "tests/maths/test_shrinkage.py::test_a_site_that_knows_nothing_takes_the_centre_and_changes_nothing",
        ),
    ),
    # clustering
    Mutant(
        "gap test along one axis too many",
        "clustering/choice.py",
        "[:, : n_clusters - 1]",
        "[:, :n_clusters]",
        (
            "tests/maths/clustering/test_by_hand.py::test_two_clusters_are_judged_along_one_axis_alone",
        ),
    ),
    Mutant(
        "scatter with one centre's freedom",
        "clustering/scatter.py",
        "(m - clusters.size) / m",
        "(m - 1) / m",
        ("tests/maths/clustering/test_scatter.py",),
    ),
    Mutant(
        "F law's mean",
        "clustering/scatter.py",
        "mean = d * nu / (nu - 2.0)",
        "mean = d * np.ones(m)",
        ("tests/maths/clustering/test_scatter.py",),
    ),
    Mutant(
        "core points as near to another centre",
        "clustering/spectral.py",
        "<= CORE_RATIO * others",
        "<= others",
        ("tests/maths/clustering/test_by_hand.py::test_core_means_leave_out_who_stands_between",),
    ),
    Mutant(
        "Huber cost without its half",
        "clustering/gradient.py",
        "(distance - 0.5 * inside)",
        "(distance - inside)",
        ("tests/maths/clustering/test_by_hand.py::test_the_cost_is_the_sum_of_hubers_function",),
    ),
    Mutant(
        "recovery interval without a factor two",
        "clustering/recovery.py",
        "2 * labels.size -",
        "labels.size -",
        (
            "tests/maths/clustering/test_convex.py::test_every_penalty_inside_the_interval_recovers_the_clusters",
        ),
    ),
    Mutant(
        "penalties not surely apart",
        "clustering/path.py",
        "nearest / (4.0 * m)",
        "nearest / m",
        (
            "tests/maths/clustering/test_by_hand.py::test_evenly_spaced_points_are_apart_at_the_lower_end_and_one_at_the_upper",
        ),
    ),
    Mutant(
        "groups merged without their sizes",
        "clustering/contraction.py",
        "group_sums(self.sizes[:, None] * self.means, super_labels, n) / sizes[:, None]",
        "group_sums(self.means, super_labels, n) / np.bincount(super_labels)[:, None]",
        (
            "tests/maths/clustering/test_convex.py::test_on_a_line_centers_are_those_of_isotonic_regression",
        ),
    ),
    Mutant(
        "groups of three dropped",
        "clustering/polished.py",
        "sizes >= smallest_group",
        "sizes > smallest_group",
        (
            "tests/maths/clustering/test_by_hand.py::test_groups_of_three_are_kept_and_groups_of_two_join_them",
        ),
    ),
    Mutant(
        "all points apart may win",
        "clustering/clusterpath.py",
        "(path.n_clusters < n_distinct)",
        "(path.n_clusters <= n_distinct)",
        (
            "tests/maths/clustering/test_by_hand.py::test_corners_of_a_simplex_are_apart_or_one_and_neither_is_an_answer",
        ),
    ),
    # models
    Mutant(
        "padding counted in the trace",
        "models/gaussian_process.py",
        " - padding.sum(axis=1)",
        "",
        (
            "tests/maths/models/test_gaussian_process.py::test_likelihood_and_gradient_equal_scikit_learn",
        ),
    ),
    Mutant(
        "cloud without importance weights",
        "models/gp_uncertainty.py",
        " + 0.5 * (draws**2).sum(axis=1)",
        "",
        (
            "tests/maths/models/test_gp_uncertainty.py::test_moments_of_one_parameter_equal_those_on_a_grid",
        ),
    ),
    Mutant(
        "cloud's deviations without the root",
        "models/gp_uncertainty.py",
        "WIDER / np.sqrt(np.maximum(values, least))",
        "WIDER / np.maximum(values, least)",
        (
            "tests/maths/models/test_gp_uncertainty.py::test_moments_of_one_parameter_equal_those_on_a_grid",
        ),
    ),
    Mutant(
        "clipped share of the wrong chi-square",
        "models/latent_classes.py",
        "chdtr(n_features + 2.0, square)",
        "chdtr(float(n_features), square)",
        ("tests/maths/models/test_latent_classes.py",),
    ),
    Mutant(
        "smallest variance d times larger",
        "models/gaussian_mixture.py",
        "np.maximum(rows.sizes * rows.n_columns, 1)",
        "np.maximum(rows.sizes, 1)",
        ("tests/maths/models/test_latent_classes.py",),
    ),
    Mutant(
        "coefficients' variance by the noise's root",
        "models/regression_mixture.py",
        "sigma[..., None] ** 2",
        "sigma[..., None]",
        (
            "tests/maths/models/test_regression_mixture.py::test_sampling_variance_is_that_of_repeated_draws",
        ),
    ),
    Mutant(
        "robust variance without that between sites",
        "models/moments.py",
        "np.median(variances, axis=0) + spread**2",
        "np.median(variances, axis=0)",
        (
            "tests/maths/test_standardizer.py::test_robust_scale_is_low_by_the_median_of_a_chi_square_only",
        ),
    ),
    Mutant(
        "degrees of freedom for one group",
        "models/moments.py",
        "clients.sizes - n_groups",
        "clients.sizes - 1",
        (
            "tests/maths/test_standardizer.py::test_covariance_within_groups_equals_a_loop_over_groups",
        ),
    ),
    Mutant(
        "samples as wide as the prior",
        "models/gp_posterior.py",
        "spread = spread - explained.T @ explained",
        "spread = spread + 0.0",
        (
            "tests/maths/models/test_gp_prediction.py::test_predictions_and_samples_are_those_of_conditioned_rows",
        ),
    ),
    Mutant(
        "samples' level by a variance",
        "models/gp_posterior.py",
        "level = np.sqrt(self.between)",
        "level = self.between",
        (
            "tests/maths/models/test_gp_prediction.py::test_predictions_and_samples_are_those_of_conditioned_rows",
        ),
    ),
    Mutant(
        "variance rescaled once",
        "models/gp_posterior.py",
        "self.scale**2 * variance",
        "self.scale * variance",
        (
            "tests/maths/models/test_gp_prediction.py::test_predictions_and_samples_are_those_of_conditioned_rows",
        ),
    ),
    Mutant(
        "co-kriging's scale gradient doubled",
        "models/cokriging.py",
        "gradient[t, 0] = 0.5 * outer.sum()",
        "gradient[t, 0] = outer.sum()",
        ("tests/maths/models/test_cokriging.py::test_the_gradient_equals_finite_differences",),
    ),
    Mutant(
        "co-kriging's reach at level s itself",
        "models/cokriging.py",
        "np.where(level > s, without",
        "np.where(level >= s, without",
        ("tests/maths/models/test_cokriging.py::test_the_gradient_equals_finite_differences",),
    ),
    Mutant(
        "sampling covariance over n",
        "models/least_squares.py",
        "/ (n_rows[usable] - n_coef)",
        "/ n_rows[usable]",
        ("tests/maths/test_odcl.py::test_sampling_covariance_is_the_textbooks",),
    ),
    Mutant(
        "ridge as a share of nothing",
        "models/least_squares.py",
        "share = ridge / np.maximum(n_rows, 1.0)",
        "share = ridge * np.ones_like(n_rows)",
        ("tests/maths/models/test_ridge.py",),
    ),
    Mutant(
        "intercept penalised",
        "models/least_squares.py",
        "n_coefficients(statistics.shape[-1]) - fit_intercept",
        "n_coefficients(statistics.shape[-1])",
        ("tests/maths/test_odcl.py::test_penalised_squared_loss_is_ridge",),
    ),
    Mutant(
        "longest step by the least curvature",
        "models/regression_mixture.py",
        "np.linalg.eigvalsh(gram)[..., -1]",
        "np.linalg.eigvalsh(gram)[..., 0]",
        (
            "tests/maths/test_fedgrem_options.py::test_a_step_that_would_diverge_is_halved_and_counted",
        ),
    ),
    Mutant(
        "shared prior without the posterior's spread",
        "models/random_effects.py",
        "(posterior.sum(axis=0) + means.T @ means)",
        "(means.T @ means)",
        ("tests/maths/models/test_random_effects.py",),
    ),
    Mutant(
        "noise of the shared prior without its posterior",
        "models/random_effects.py",
        'residual += np.einsum("mij,mji->m", gram, posterior)',
        "pass",
        ("tests/maths/models/test_random_effects.py",),
    ),
    Mutant(
        "Adam without the first steps' correction",
        "models/adam.py",
        "self.mean / (1 - self.fade**number) / size",
        "self.mean / size",
        (
            "tests/maths/test_fgpr_steps.py::test_adams_steps_along_a_constant_gradient_are_of_length_one",
        ),
    ),
    Mutant(
        "stochastic steps forget strong convexity",
        "models/descent.py",
        "weakest[filled] * (t + 1) + strongest[filled]",
        "strongest[filled]",
        (
            "tests/maths/test_odcl.py::test_stochastic_steps_approach_the_exact_fit_and_do_not_depend_on_the_block",
        ),
    ),
    Mutant(
        "steep rows of many coefficients",
        "models/local_loss.py",
        "self.steepest_row * (squares + self.fit_intercept)",
        "(squares + self.fit_intercept)",
        ("tests/maths/models/test_steepness.py",),
    ),
    Mutant(
        "network's slope without the square",
        "models/averaged_functions.py",
        "slope = 1.0 - states[number] ** 2",
        "slope = 1.0 - states[number]",
        ("tests/maths/models/test_averaged_functions.py",),
    ),
    Mutant(
        "ridge scored without the intercept's freedom",
        "models/ridge_choice.py",
        "freedom = rank - unspent + fit_intercept",
        "freedom = rank - unspent",
        ("tests/maths/models/test_ridge_choice.py",),
    ),
    Mutant(
        "errors of a ridge at the rows' own places, not at further ones",
        "models/ridge_choice.py",
        "if for_all else further",
        "if for_all else 1.0",
        ("tests/maths/models/test_ridge_choice.py",),
    ),
    Mutant(
        "a row's leverage without the row's weight",
        "models/logistic_ridge.py",
        "leverage / spare",
        "leverage * spare",
        ("tests/maths/models/test_ridge_choice.py",),
    ),
    Mutant(
        "weighted logistic rows pull alike",
        "models/logistic.py",
        "slopes(score, y) * present / n_rows",
        "slopes(score, y) / n_rows",
        ("tests/maths/models/test_ridge_choice.py",),
    ),
    Mutant(
        "errors not raised by what the cluster's fit has spent",
        "algorithms/odcl_evidence.py",
        "np.maximum(spare, LEAST_SPARE) ** -2.0",
        "np.ones_like(spare)",
        ("tests/maths/test_sites_stay_alone.py",),
    ),
    Mutant(
        "a tiny site says whether others stay alone",
        "algorithms/odcl_choice.py",
        "return able if able.any() else self.evidence.known",
        "return self.evidence.known",
        ("tests/maths/test_sites_stay_alone.py",),
    ),
    Mutant(
        "every site alone for the price of one",
        "algorithms/odcl_rivals.py",
        "float(evidence.rank.sum()) + 1.0",
        "float(evidence.rank.mean()) + 1.0",
        ("tests/maths/test_sites_stay_alone.py",),
    ),
    Mutant(
        "IFCA's steps without the centre",
        "algorithms/ifca.py",
        "(gradients[..., :-1] - self.center * level) / self.unit",
        "gradients[..., :-1] / self.unit",
        ("tests/maths/test_sites_stay_alone.py",),
    ),
    # algorithms
    Mutant(
        "weighted median from below",
        "algorithms/aggregate.py",
        "0.5 * float(low + high)",
        "float(low)",
        (
            "tests/maths/test_minimise.py::test_a_weighted_median_has_half_the_weight_on_either_side",
        ),
    ),
    Mutant(
        "a gradient against a bound counts",
        "algorithms/minimise.py",
        "np.clip(point - self.seen[index].gradient, self.lower, self.upper)",
        "point - self.seen[index].gradient",
        ("tests/maths/test_minimise.py",),
    ),
    Mutant(
        "no site capped by those without rows",
        "algorithms/aggregate.py",
        "float(np.median(weights[used]))",
        "float(np.median(weights))",
        ("tests/maths/test_averages.py",),
    ),
    Mutant(
        "BIC of priors without their shares",
        "algorithms/fgpr_mixture.py",
        "self.n_priors * self.n_theta + self.n_priors - 1",
        "self.n_priors * self.n_theta",
        ("tests/maths/test_fgpr_steps.py::test_bic_counts_the_shares_of_priors",),
    ),
    Mutant(
        "shares' gradient per site",
        "algorithms/fgpr_mixture.py",
        "by_logit = len(share) * weights - share.sum(axis=0)",
        "by_logit = weights - share.mean(axis=0)",
        ("tests/maths/test_fgpr_steps.py::test_the_mixtures_gradient_equals_finite_differences",),
    ),
    Mutant(
        "own hyper-parameters by BIC alone",
        "algorithms/fgpr_sites.py",
        "* float(np.log(rows)) + few",
        "* float(np.log(rows))",
        ("tests/maths/test_fgpr.py::test_few_rows_need_more_than_bic",),
    ),
    Mutant(
        "shared weights by the variance of a count",
        "algorithms/mixtures/fedgrem.py",
        "(weights * (1 - weights) / np.maximum(rows, 1.0))",
        "(weights / np.maximum(rows, 1.0))",
        (
            "tests/maths/test_fedgrem_server.py::test_shared_weights_of_sites_that_differ_by_more_than_chance_stay_their_own",
        ),
    ),
    Mutant(
        "penalty without the number of sites",
        "algorithms/mixtures/fedgrem.py",
        "np.sqrt(p + np.log(m))",
        "np.sqrt(p)",
        (
            "tests/maths/test_fedgrem_server.py::test_sites_move_to_the_centre_by_the_papers_penalty_over_the_root_of_their_rows",
        ),
    ),
    Mutant(
        "TGMM counts the site among the others",
        "algorithms/mixtures/tgmm.py",
        "(known.sum() - known)",
        "(known.sum() + 0 * known)",
        ("tests/maths/test_fedgrem.py::test_tgmm_solves_its_equation",),
    ),
    Mutant(
        "mini-batch's scatter stands for itself",
        "algorithms/mixtures/sites.py",
        "share[:, None, None] * scatter",
        "scatter",
        ("tests/maths/test_fedgrem_server.py::test_a_mini_batch_stands_for_all_rows_of_its_site",),
    ),
    Mutant(
        "pooled covariance of claimed rows",
        "algorithms/mixtures/coordinator.py",
        "(share * scatter[used]).sum(axis=0)",
        "scatter[used].sum(axis=0)",
        (
            "tests/maths/test_fedgrem_server.py::test_a_common_covariance_does_not_depend_on_how_rows_are_spread",
        ),
    ),
    Mutant(
        "log determinant of growing departures by half",
        "models/common_sums.py",
        "log_det + 2.0 * part.growth.sum()",
        "log_det + part.growth.sum()",
        ("tests/maths/models/test_common_curve.py",),
    ),
    Mutant(
        "departures grow on beyond the rows",
        "models/common_form.py",
        "np.clip(X[..., 0], self.edges[0][0], self.edges[1][0])",
        "X[..., 0]",
        ("tests/maths/models/test_common_curve.py",),
    ),
    Mutant(
        "parts of a common curve that may vanish",
        "models/gp_priors.py",
        "avoids_zero=is_variance.astype(np.float64)",
        "avoids_zero=weak.avoids_zero",
        ("tests/maths/models/test_gp_priors.py",),
    ),
    Mutant(
        "half-Cauchy tails cut off",
        "models/gp_priors.py",
        "long_tailed=is_part",
        "long_tailed=weak.long_tailed",
        ("tests/maths/models/test_gp_priors.py",),
    ),
    Mutant(
        "rows that lie far off widen nothing",
        "models/common_site.py",
        "return np.maximum(more, 1.0)",
        "return np.minimum(more, 1.0)",
        ("tests/maths/models/test_common_site.py",),
    ),
    Mutant(
        "few rows judge as if they were many",
        "models/common_site.py",
        "(off.sum(axis=-1) + ROWS_AS_EXPECTED) / (off.shape[-1] + ROWS_AS_EXPECTED)",
        "off.mean(axis=-1)",
        ("tests/maths/models/test_common_site.py",),
    ),
    Mutant(
        "sites foreseen together are not widened",
        "models/common_site.py",
        "_short_alike(first, own) if first._judges else",
        "_short_alike(first, own) if False else",
        ("tests/maths/models/test_common_site.py",),
    ),
    Mutant(
        "bent features that jump at their edge",
        "models/common_form.py",
        "return seen + np.exp(self.haste * inside) / edge * (X - low - inside)",
        "return seen",
        ("tests/maths/models/test_common_curve.py",),
    ),
    Mutant(
        "rows between edges do not bend",
        "models/common_form.py",
        "seen: Floats = low + inside * share / edge",
        "seen: Floats = low + inside",
        ("tests/maths/models/test_common_curve.py",),
    ),
    Mutant(
        "features that never bend",
        "algorithms/fgpr_common.py",
        "others.append((best, True))",
        "others.append((best, False))",
        ("tests/maths/test_fgpr_common.py",),
    ),
    Mutant(
        "samples as narrow as before",
        "models/common_site.py",
        "cholesky(self._short * (common + left))",
        "cholesky(common + left)",
        ("tests/maths/models/test_common_site.py",),
    ),
    Mutant(
        "a site's spread is no surer between two rows than beyond one",
        "models/own_spread.py",
        "near / (1.0 + near / np.maximum(far, np.finfo(float).tiny))",
        "near",
        ("tests/maths/models/test_own_spread.py",),
    ),
    Mutant(
        "where a site has no rows the noise does not swell",
        "models/common_site.py",
        "(wider - 1.0) * (np.maximum(left, 0.0) + noise)",
        "(wider - 1.0) * np.maximum(left, 0.0)",
        ("tests/maths/models/test_common_site.py",),
    ),
    Mutant(
        "centre of the target lost",
        "algorithms/fmlr_expectation.py",
        "- 2 * centre * total + mass * centre**2",
        "- 2 * centre * total",
        ("tests/maths/test_choosing_by_bic.py",),
    ),
    Mutant(
        "BIC by predictions without the coefficients",
        "algorithms/odcl_evidence.py",
        "n_clusters * self.n_coefficients * np.log(n_rows)",
        "n_clusters * np.log(n_rows)",
        ("tests/maths/test_choosing_by_bic.py",),
    ),
    Mutant(
        "a small site stands out like a large one",
        "algorithms/odcl_groups.py",
        "np.sqrt(spread**2 + np.median(spread) ** 2)",
        "spread",
        ("tests/maths/test_odcl.py::test_large_sites_do_not_stand_alone_for_being_large",),
    ),
    Mutant(
        "threshold per site of the lasso",
        "algorithms/consensus.py",
        "settings.alpha / weight.sum()",
        "settings.alpha / len(weight)",
        ("tests/conformance/test_battery.py::test_identical_clients_equal_pooled",),
    ),
    # protocol
    Mutant(
        "majority of batches, not of clients",
        "protocol/gate.py",
        "votes[meaning] += len(clients)",
        "votes[meaning] += 1",
        ("tests/maths/test_protocol.py::test_clients_are_counted_and_not_the_blocks_they_come_in",),
    ),
    Mutant(
        "least rows are too few",
        "protocol/gate.py",
        "few = rows < max(",
        "few = rows <= max(",
        (
            "tests/maths/test_protocol.py::test_rows_behind_an_entry_are_counted_where_they_are_known",
        ),
    ),
    Mutant(
        "a site's own rule only when laxer",
        "protocol/gate.py",
        "max(declared.least_rows, least_rows)",
        "min(declared.least_rows, least_rows)",
        (
            "tests/maths/test_protocol.py::test_rows_behind_an_entry_are_counted_where_they_are_known",
        ),
    ),
    Mutant(
        "the bound itself is over it",
        "protocol/gate.py",
        "(held <= declared.bound)",
        "(held < declared.bound)",
        ("tests/maths/test_protocol.py::test_values_over_the_bound_and_not_finite_are_told_apart",),
    ),
    Mutant(
        "borrowed replies written on",
        "protocol/last_replies.py",
        "known = self._arrays[name] = known.copy()",
        "known = self._arrays[name]",
        ("tests/maths/test_protocol.py::test_the_last_reply_of_a_site_stands",),
    ),
    Mutant(
        "silence does not age",
        "protocol/last_replies.py",
        "self.age += 1.0",
        "pass",
        ("tests/maths/test_protocol.py::test_the_last_reply_of_a_site_stands",),
    ),
    # engines
    Mutant(
        "dropped one round late",
        "engines/driver.py",
        ".get(k, 0) + 1 >= rules.max_misses",
        ".get(k, 0) + 1 > rules.max_misses",
        ("tests/maths/test_protocol.py::test_a_silent_site_is_dropped_after_the_stated_misses",),
    ),
    Mutant(
        "withheld replies cost the quorum",
        "engines/driver.py",
        "(len(asked) - n_withheld)",
        "len(asked)",
        (
            "tests/maths/test_protocol.py::test_withholding_by_the_rule_on_rows_does_not_cost_the_quorum",
        ),
    ),
    Mutant(
        "share of sites rounded up to all",
        "engines/driver.py",
        "max(1, round(ask.fraction * len(asked)))",
        "max(1, int(ask.fraction * len(asked)) + 1)",
        ("tests/maths/test_protocol.py::test_a_share_of_the_sites_is_the_nearest_number_of_them",),
    ),
    # settings
    Mutant(
        "at most is below",
        "settings.py",
        "number <= self.most",
        "number < self.most",
        (
            "tests/arguments/test_settings.py::test_what_is_not_allowed_is_refused_by_name_and_value",
        ),
    ),
    Mutant(
        "sites believe what is sent",
        "settings.py",
        "accepted = value if rule is None else rule.accept(name, value)",
        "accepted = value",
        (
            "tests/arguments/test_settings.py::test_a_site_takes_exactly_its_part_and_checks_it_again",
        ),
    ),
    # ties
    Mutant(
        "ties without their floor",
        "ties.py",
        "np.maximum(relative * np.abs(extreme), floor)",
        "relative * np.abs(extreme)",
        ("tests/maths/test_ties.py::test_near_zero_the_floor_says_what_rounding_is",),
    ),
    Mutant(
        "equal values have different ranks",
        "ties.py",
        "apart = np.diff(ordered) > np",
        "apart = np.diff(ordered) >= np",
        ("tests/maths/test_ties.py",),
    ),
    # inference
    Mutant(
        "odd by size alone",
        "inference/misfit_rules.py",
        "odd[np.flatnonzero(heard)[wide[unlikely]]] = True",
        "odd[np.flatnonzero(heard)[wide]] = True",
        ("tests/maths/test_odd_sites.py::test_among_many_clean_sites_none_is_odd",),
    ),
    Mutant(
        "odd by chance alone",
        "inference/misfit_rules.py",
        "wide = np.flatnonzero(deviance / n > LEAST_RATIO * typical)",
        "wide = np.arange(len(n))",
        ("tests/maths/test_odd_sites.py::test_with_many_rows_a_small_misfit_is_no_oddness",),
    ),
    Mutant(
        "a column of two values is a table only if they are codes",
        "privacy/disclosure/look.py",
        "table)[:, _coded(table) | two]",
        "table)[:, _coded(table)]",
        ("tests/deployment/test_disclosure.py",),
    ),
    Mutant(
        "scores tell some rows from others",
        "algorithms/held_out.py",
        "((n_worst > 0) & (n_worst < test.sizes))",
        "((n_worst > 0) & (n_worst > test.sizes))",
        (
            "tests/deployment/test_rows_behind.py::"
            "test_models_made_up_to_be_scored_read_the_outermost_patient_of_every_fold",
        ),
    ),
    Mutant(
        "rows counted by their number, whatever their weight",
        "privacy/disclosure/look.py",
        "float(effective_rows(shares.sum(), np.square(shares).sum()))",
        "float(len(shares))",
        ("tests/deployment/test_rows_behind.py::test_rows_that_hardly_count_hide_nobody",),
    ),
    Mutant(
        "parts that differ by a few rows are looked for too near",
        "privacy/disclosure/parts.py",
        "near = left.within((self.least + 1.0) * most**2, rows)",
        "near = left.within(most**2, rows)",
        ("tests/deployment/test_parts.py::test_the_quick_search_is_the_plain_one",),
    ),
    Mutant(
        "a question's parameters are believed",
        "privacy/disclosure/guard.py",
        "if far.all():",
        "if False:",
        ("tests/deployment/test_rows_behind.py",),
    ),
    Mutant(
        "mean distance of a group instead of the worst direction's",
        "models/misfit.py",
        "np.linalg.eigvalsh(scatter)[-1]",
        "np.linalg.eigvalsh(scatter).mean()",
        MISFIT,
    ),
    Mutant(
        "few rows are far by chance",
        "models/misfit.py",
        "by_chance = 1.0 + np.sqrt(away.shape[1] / n_rows)",
        "by_chance = 1.0",
        MISFIT,
    ),
    Mutant(
        "too sure is compared with nothing known alone",
        "models/misfit.py",
        "SHARES = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2)",
        "SHARES = (0.0,)",
        MISFIT,
    ),
    Mutant(
        "a step on drawn rows is about all rows",
        "algorithms/ifca.py",
        "counts = times_drawn(clients, lots, slice(None))",
        "pass",
        ("tests/deployment/test_rows_behind.py",),
    ),
    Mutant(
        "folds of a cut are not judged by themselves",
        "privacy/disclosure/guard.py",
        "fault = self._judged(schema, arrays, np.ones(len(cut)), cut) or self._cut_differs(cut)",
        "fault = self._cut_differs(cut)",
        (
            "tests/deployment/test_left_out.py::"
            "test_replies_without_each_fold_give_what_each_fold_holds",
        ),
    ),
    Mutant(
        "a group is not judged by what each fold has of it",
        "privacy/disclosure/guard.py",
        "[rows] if cut is None else [rows, *(rows * part for part in cut.T)]",
        "[rows] if cut is None or rows.min() < 1 else [rows, *(rows * part for part in cut.T)]",
        (
            "tests/deployment/test_left_out.py::"
            "test_a_group_of_enough_rows_is_not_told_without_folds_that_hold_a_few_of_it",
        ),
    ),
    Mutant(
        "rows without a fold are not compared with earlier runs",
        "privacy/disclosure/guard.py",
        "        if nearest < self.rules.nfilter_subset:",
        "        if nearest < 0:",
        (
            "tests/deployment/test_left_out.py::"
            "test_rows_without_a_fold_that_are_nearly_those_of_an_earlier_run_are_withheld",
        ),
    ),
    Mutant(
        "every round of a fit without a fold draws the same",
        "estimators/left_out.py",
        "KeyRing(clients.names, chosen.seed).at(number)",
        "KeyRing(clients.names, chosen.seed).at(1)",
        (
            "tests/smoke/test_left_out_at_sites.py::"
            "test_the_numbers_are_those_of_fits_without_the_folds",
        ),
    ),
    Mutant(
        "a way that all sites keep back ends the comparison",
        "estimators/left_out.py",
        "needed=ask.needed and needed)",
        "needed=ask.needed)",
        (
            "tests/smoke/test_best_in_rounds_at_sites.py::"
            "test_a_curve_that_sites_do_not_trust_the_server_with_is_out_and_lines_are_as_without_it",
        ),
    ),
    Mutant(
        "curves of sites alone need no permission",
        "estimators/left_out.py",
        "for way in Plan(settings).ways)",
        "for way in Plan(settings).ways[1:])",
        (
            "tests/deployment/test_best_at_halves.py::"
            "test_curves_that_are_called_alone_are_still_curves",
        ),
    ),
    Mutant(
        "fits without different folds share a memory",
        "estimators/left_out.py",
        'return f"{way}.{k}."',
        'return f"{way}."',
        (
            "tests/smoke/test_left_out_at_sites.py::"
            "test_the_numbers_are_those_of_fits_without_the_folds",
        ),
    ),
    Mutant(
        "the rest of a small group leaves",
        "privacy/disclosure/guard.py",
        "            bad.add(int(r))",
        "            break",
        (
            "tests/deployment/test_rows_behind.py::"
            "test_what_a_small_group_leaves_of_the_others_is_withheld_too",
        ),
    ),
    Mutant(
        "values compared with the largest site",
        "protocol/gate.py",
        "declared.reach * np.median(some)",
        "declared.reach * np.max(some)",
        ("tests/discordant/test_far_values.py::test_the_median_site_sets_the_scale",),
    ),
    Mutant(
        "groups that the sums do not give are believed",
        "algorithms/fmlr_expectation.py",
        "        return same | ~known",
        "        return same | known | ~known",
        (
            "tests/discordant/test_implausible_sites.py::"
            "test_a_likelihood_that_a_site_cannot_have_is_seen_also_at_the_end",
        ),
    ),
    Mutant(
        "Louis' information without what is not known of the kinds",
        "models/sandwich.py",
        "    information -= rooted.swapaxes(1, 2) @ rooted\n",
        "",
        SANDWICH,
    ),
    Mutant(
        "clients left out without their leverage",
        "models/sandwich.py",
        "left = (total - terms.informations)",
        "left = (total - 0.0 * terms.informations)",
        SANDWICH,
    ),
    Mutant(
        "curvature of a mixture as if its weights were known",
        "models/mixture_information.py",
        "information - cross @ inverse @ cross.T",
        "information",
        COMPONENT_ERRORS,
    ),
    Mutant(
        "sites' components without what is not known of the centre",
        "models/component_errors.py",
        "    total = own + of_center + ",
        "    total = own + ",
        COMPONENT_ERRORS,
    ),
    Mutant(
        "spread between sites by maximum instead of restricted likelihood",
        "models/component_errors.py",
        " - np.trace(taken[own, own] @ metric)",
        "",
        COMPONENT_ERRORS,
    ),
    Mutant(
        "curvature of priors without that of their priors",
        "models/gp_errors.py",
        "by_theta = by_theta - penalty(priors, theta)[1]",
        "pass",
        ("tests/maths/models/test_gp_errors.py",),
    ),
    Mutant(
        "known labels not read by groups of one covariance",
        "models/gaussian_mixture.py",
        "        rule_out(joint, chunk.labels)\n        total",
        "        total",
        ("tests/maths/test_labelled_rivals.py",),
    ),
    Mutant(
        "few labels without an inverse",
        "algorithms/mixtures/shared_start.py",
        "share = (d + 2.0) / (d + 2.0 + n_rows.sum())",
        "share = 0.0",
        ("tests/maths/test_borrowed.py::test_few_labels_of_many_columns_are_enough_for_a_start",),
    ),
    Mutant(
        "numbers of groups compared on other sites",
        "algorithms/mixtures/shared_start.py",
        "if best.trusted.all():",
        "if True:",
        ("tests/maths/test_borrowed.py::test_numbers_of_groups_are_compared_on_the_same_sites",),
    ),
    Mutant(
        "all numbers of bent covariances counted",
        "shrinkage/in_common.py",
        "(1.0 - share + share * told / told.sum())",
        "np.ones_like(share)",
        ("tests/maths/test_borrowed.py::test_covariances_count_as_far_as_they_are_their_own",),
    ),
    Mutant(
        "own covariances whatever the labels say",
        "algorithms/mixtures/shaped.py",
        'if start.all_named and settings.covariance_type == "full":',
        "if False:",
        ("tests/maths/test_borrowed.py::test_labels_say_whether_groups_have_one_covariance",),
    ),
    Mutant(
        "degrees of freedom from the wide grid alone",
        "shrinkage/in_common.py",
        "WIDE_STEP, HALVES = 8, (4, 2, 1)",
        "WIDE_STEP, HALVES = 8, ()",
        ("tests/maths/test_borrowed.py::test_the_likeliest_degrees_of_the_whole_grid_are_found",),
    ),
    Mutant(
        "starts compared to all digits of their rows",
        "algorithms/mixtures/departures.py",
        "np.diag(np.square(FINEST * spread))",
        "np.diag(np.square(0.0 * spread))",
        ("tests/maths/test_borrowed.py",),
    ),
    Mutant(
        "rows kept back do not count for weights",
        "shrinkage/borrowed.py",
        "return counts + np.where(kept_back, rest, 0.0)[:, None] * share",
        "return counts",
        ("tests/maths/test_groups_kept_back.py",),
    ),
    Mutant(
        "degrees of the last round kept in any case",
        "shrinkage/in_common.py",
        "return at if top.all() else None",
        "return at",
        ("tests/maths/test_borrowed.py::test_the_likeliest_degrees_of_the_whole_grid_are_found",),
    ),
    Mutant(
        "classes that chance tells apart stay apart",
        "shrinkage/in_common.py",
        "centers = site_shifts.pulled_together(common.centers + move, certain, unit)",
        "centers = common.centers + move",
        ("tests/maths/test_site_shifts.py",),
    ),
    Mutant(
        "sites that are all far apart all odd",
        "shrinkage/in_common.py",
        "if not shift.any():",
        "if False:",
        ("tests/maths/test_site_shifts.py",),
    ),
    Mutant(
        "centres that follow few sites cost shifts nothing",
        "shrinkage/site_shifts.py",
        "level * n_sites / (n_sites - 1.0)",
        "level",
        ("tests/maths/test_site_shifts.py",),
    ),
    Mutant(
        "labels left out not compared with all groups",
        "models/left_out_rows.py",
        "to_posterior(joint) - of_any",
        "to_posterior(joint)",
        ("tests/maths/test_borrowed.py",),
    ),
    Mutant(
        "groups of a refit in their own order",
        "estimators/site_evidence.py",
        "reference=like._result.centers",
        "reference=centers",
        ("tests/smoke/test_odd_sites_and_how_many.py",),
    ),
)
