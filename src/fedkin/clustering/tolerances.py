"""How exact this room is: every tolerance once, with its reason."""

from __future__ import annotations

# ------------------------------------------------------------------ rounding

# Distances are exact to this share.
DISTANCE_ROUNDING = 1e-12
# |v_p|^2 + |v_q|^2 - 2<v_p, v_q> loses all digits at t = 1e-8 |v|; below this share of |v|
# (relative error of t^2 about 1e-8 there) distances are taken from differences instead.
CANCELLATION = 1e-4
# Of an objective: differences below it are noise.
OBJECTIVE_ROUNDING = 1e-14
# Costs are squares: what rounding leaves of one that is zero is this share of the points' scatter.
COST_ROUNDING = 1e-28
# Of the points' squares: distances of 1e-12 are rounding.
NO_OBJECTIVE = 1e-24

# ------------------------------------------------------------------ the solution of (12)

# |u - u*|^2 <= 2 gap * objective: a relative gap of 1e-10 puts the whole solution (m, d) within
# 1.4e-5 of the root of the objective. (The tests hold us to 1e-7.)
PROMISED_GAP = 1e-10
# Smoothings spread/10, spread/100, ...; beyond 1e-10 distances are rounding.
N_LEVELS = 10
SMOOTHING_STEP = 0.1
# Two points are told apart when their squared distance exceeds the gap: it falls twice as fast.
LEAST_TOLERANCE = 1e-16
# A pull of full length keeps two fused points up to some smoothings apart. A pair joined by mistake
# costs gap on a graph, and the next level parts it again; elsewhere joining needs a proof.
JOINED_WITHIN = 10.0
# First smoothing: share of the median neighbour distance, inactive while nothing fuses.
FIRST_SMOOTHING = 0.1
HOPEFUL_TOLERANCE = 1e-11
# On a graph every smoothing is solved to this.
GRAPH_TOLERANCE = 1e-12

# ------------------------------------------------------------------ proofs of fusion

# A penalty within the last of these shares of a fusion is not told apart from it. Each is the start
# of the next: a step of 1e-3 at once loses the way to the finer solution.
MARGINS = (1e-3, 1e-4, 1e-5, 1e-6)
# A fused set of some hundred points is about ten smoothings wide: this share of the margin in (*)
# leaves room for ten times that.
SMOOTHING_SHARE = 0.003
# A set this many times too wide for (*) is not tried with a smaller margin.
HOPELESS = 30.0
# Residual the solver may leave, as a share of the right side of (*).
RESIDUAL_SHARE = 0.1
# On the way to a fine smoothing every step is solved to this relative gap at most.
PASSING_TOLERANCE = 1e-6

# ------------------------------------------------------------------ gradient clustering

# Least move of a centre that counts, relative to the points' spread.
STILL = 1e-9
