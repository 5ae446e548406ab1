"""Ragged clients: rows of all sites one below the other, `offsets` between them.

A `Federation` is also what a client function receives: in one process it holds everybody, at a
real site it holds one client. It owns names, shapes, checks, splits and size buckets; it knows
nothing of models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedkin.arrays import Array, Bools, Floats, Indices
from fedkin.frames import (
    READERS,
    FederationError,
    Finding,
    chosen_columns,
    kind_of,
    numeric_table,
    plain_names,
    read_site,
    same_columns,
    site_name,
    target_vector,
    value_errors,
    with_text_names,
)
from fedkin.levels import Encoding, classes_of, target_column
from fedkin.names import (
    canonical_name,
    constant_at_all,
    constant_at_some,
    name_codes,
    name_order,
    site_labels,
)
from fedkin.randomness import name_keys, row_uniforms, uniforms
from fedkin.tables import Table

# A column whose mean is this many times its spread is close to a second intercept: sums of
# products hold about 16 digits, and twice these are gone before the spread begins.
OFF_CENTRE = 1e5
# Beyond this no message takes a number, and squares soon overflow.
TOO_LARGE = 1e100
# Padding a bucket of clients to its widest member wastes at most this factor.
BUCKET_RATIO = 1.25
# Padded numbers handled at once; 32 MiB of doubles stay near the last-level cache.
BUCKET_ELEMENTS = 1 << 22
# Columns turned into rows at once: eight doubles are what a read from memory brings.
COLUMNS_AT_ONCE = 8


@dataclass(frozen=True)
class Bucket:
    """Clients of similar size, padded to one width for batched linear algebra."""

    clients: Indices
    starts: Indices
    sizes: Indices
    width: int

    def pack(self, rows: Floats) -> Floats:
        """Rows (N, d) or (N,) as zero-padded blocks (k, d, width) or (k, width), features first."""
        block = self.stack(rows)
        return block.copy() if rows.ndim == 1 else block.transpose(0, 2, 1).copy()

    @cached_property
    def present(self) -> Bools:
        """Which places of the blocks hold rows, (k, width); the others are padding."""
        return np.arange(self.width) < self.sizes[:, None]

    def stack(self, rows: Floats) -> Floats:
        """Rows (N, d) or (N,) as zero-padded blocks (k, width, d) or (k, width), to be read only.

        Rows of clients of one size that stand one after another are not copied.
        """
        if (self.sizes == self.width).all() and (np.diff(self.starts) == self.width).all():
            k, first = len(self.starts), self.starts[0]
            return rows[first : first + k * self.width].reshape(k, self.width, *rows.shape[1:])
        if not len(rows):
            return np.zeros((len(self.sizes), self.width, *rows.shape[1:]))
        stacked = rows.take(self._places, axis=0)
        stacked[~self.present] = 0.0
        return stacked

    @cached_property
    def _places(self) -> Indices:
        """Where the row of every place stands; padding repeats the client's last row."""
        last = np.maximum(self.sizes[:, None] - 1, 0)
        places: Indices = self.starts[:, None] + np.minimum(np.arange(self.width), last)
        return places


@dataclass(frozen=True, eq=False)
class Federation:
    """The rows of m clients with d features; those of client k are `X[offsets[k]:offsets[k + 1]]`.

    Build one with `from_groups`, `from_clients`, `from_frame` or `from_files`. Clients are kept in
    the order of their names ('site-2' before 'site-10').

    Examples
    --------
    >>> from fedkin import Federation
    >>> data = Federation.from_groups([[1.0], [2.0], [5.0]], ["b", "a", "b"], y=[0.0, 1.0, 2.0])
    >>> data.names, data.sizes.tolist()
    (('a', 'b'), [1, 2])
    >>> data.client(1)[1].tolist()
    [0.0, 2.0]
    """

    X: Floats
    offsets: Indices
    names: tuple[str, ...]
    y: Floats | None = None
    feature_names: tuple[str, ...] = ()
    target_name: str | None = None
    rows: Indices = field(default_factory=lambda: np.empty(0, dtype=np.intp), repr=False)
    """Where each row stood in the data given to `from_groups` or `from_frame`."""
    weights: Floats | None = field(default=None, repr=False)
    """How much each row counts, all above zero; None if all count the same (`with_weights`)."""
    encoding: Encoding | None = field(default=None, repr=False)
    """How words and dates of a table became numbers (`from_frame`)."""
    of_table: int = field(default=0, repr=False)
    """How many rows it has if it was made from one table; a part has fewer, or says 0."""

    # ---------------------------------------------------------------- constructors

    @classmethod
    def from_groups(
        cls,
        X: Any,
        groups: ArrayLike,
        y: ArrayLike | None = None,
        feature_names: Sequence[str] | None = None,
        target_name: str | None = None,
    ) -> Federation:
        """Make a federation from one table and a site name per row."""
        table, features = numeric_table(X)
        features = features if feature_names is None else tuple(feature_names)
        labels = site_labels(groups)
        if labels.ndim != 1 or len(labels) != len(table):
            raise ValueError(
                f"groups must hold one site name per row: {len(table)} rows, "
                f"but groups has shape {labels.shape}"
            )
        target = None if y is None else target_vector(y, len(table))
        names, codes = name_codes(labels)
        rows = np.argsort(codes, kind="stable")
        counts = np.bincount(codes, minlength=len(names))
        return cls._checked(
            table[rows],
            _offsets(counts),
            names,
            None if target is None else target[rows],
            features,
            None if y is None else (target_name or getattr(y, "name", None) or "y"),
            rows,
            of_table=len(table),
        )

    @classmethod
    def from_clients(
        cls, clients: Mapping[Any, Any] | Sequence[Any], target_name: str = "y"
    ) -> Federation:
        """Make a federation from X or (X, y) of every site: a mapping by name, or a list.

        Sites of a list are called site-1, site-2, ...
        """
        if not isinstance(clients, Mapping):
            clients = {f"site-{i + 1}": client for i, client in enumerate(clients)}
        if not clients:
            raise ValueError("a federation needs at least one site")
        parts = {}
        for given, client in clients.items():
            name = canonical_name(given)
            if name in parts:
                raise ValueError(f"two sites are both called {name!r}; rename one of them")
            pair = client if isinstance(client, tuple) else (client, None)
            try:
                table, features = numeric_table(pair[0])
                target = None if pair[1] is None else target_vector(pair[1], len(table))
            except ValueError as error:
                raise FederationError([Finding("error", name, str(error), "mend it")]) from None
            parts[name] = (table, features, target)
        names = tuple(sorted(parts, key=name_order))
        features, tables = same_columns({name: parts[name][:2] for name in names})
        targets = {name: parts[name][2] for name in names}
        without = [name for name in names if targets[name] is None]
        if without and len(without) < len(names):
            raise FederationError(
                [Finding("error", n, "has no target y", "give (X, y)") for n in without]
            )
        return cls._checked(
            np.concatenate([tables[name] for name in names]),
            _offsets(np.array([len(tables[name]) for name in names])),
            names,
            None if without else np.concatenate([targets[name] for name in names]),
            features,
            None if without else target_name,
        )

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        client: str = "site",
        target: str | None = None,
        features: Sequence[str] | None = None,
        *,
        encoding: Encoding | None = None,
        missing: Literal["error", "drop"] = "error",
        classes: bool = False,
    ) -> Federation:
        """Make a federation from a pandas, polars or pyarrow table with a column of site names.

        Parameters
        ----------
        frame : table
            One row per observation.
        client : column with the site's name
        target : column with the target, or None
        features : columns to use, or None for all but the site's and the target's
            Words and dates become numbers by the rules of `fedkin.levels`.
        encoding : Encoding or None
            That of an earlier federation (`federation.encoding`), so that words become the same
            numbers; None learns it from the table.
        missing : {"error", "drop"}
            What becomes of rows that lack a number: they stop everything, or are left out.
        classes : bool
            Whether the target may be words, which become 0, 1, ... (`federation.encoding.classes`).
        """
        import narwhals.stable.v1 as nw

        if missing not in ("error", "drop"):
            raise ValueError(f"missing must be 'error' or 'drop', not {missing!r}")
        table = nw.from_native(with_text_names(frame), eager_only=True)
        client, target = str(client), None if target is None else str(target)
        features = None if features is None else [str(name) for name in features]
        if encoding is not None:
            features = [column.name for column in encoding.columns]
        features = chosen_columns(table.columns, client, target, features)
        if encoding is None:
            words = classes_of(table[target], target) if classes and target is not None else ()
            encoding = Encoding.learn(table, features, words)
        X = encoding.matrix(table)
        y = None if target is None else target_column(table[target], target, encoding.classes)
        names = table[client].to_list()
        rows = np.arange(len(X))
        if missing == "drop":
            gaps = np.isnan(X).any(axis=1) | (False if y is None else np.isnan(y))
            rows = np.flatnonzero(~gaps)
            if len(X) and not len(rows):
                raise FederationError(_no_row_is_whole(X, y, encoding.feature_names, target))
        made = cls.from_groups(
            X[rows],
            [names[i] for i in rows],
            None if y is None else y[rows],
            encoding.feature_names,
            target,
        )
        return replace(made, rows=rows[made.rows], encoding=encoding)

    @classmethod
    def from_files(
        cls,
        files: Mapping[Any, str | Path] | Sequence[str | Path] | str | Path,
        target: str | None = None,
    ) -> Federation:
        """Make a federation from one CSV, Parquet or npz file per site.

        `files` is a mapping by name, a list, or a folder.

        A site is called after its file unless a mapping says otherwise; an npz file holds `X` and,
        if there is a target, `y`.
        """
        if isinstance(files, str | Path):
            folder = Path(files)
            readable = {*READERS, ".npz"}
            files = sorted(path for path in folder.iterdir() if kind_of(path) in readable)
            if not files:
                raise ValueError(f"no CSV, Parquet or npz files in {folder}")
        if not isinstance(files, Mapping):
            stems = [site_name(Path(f)) for f in files]
            twice = {stem for stem in stems if stems.count(stem) > 1}
            if twice:
                raise ValueError(f"two files are both called {min(twice)!r}; give a mapping")
            files = dict(zip(stems, files))
        read, findings = {}, []
        for name, path in files.items():
            try:
                read[name] = read_site(Path(path), target)
            except ValueError as error:
                fact = str(error).removeprefix(f"{path}: ")
                findings.append(Finding("error", str(name), fact, f"mend or leave out {path}"))
        if findings:
            raise FederationError(findings)
        clients = {n: X if y is None else (X, y) for n, (X, y) in read.items()}
        return cls.from_clients(clients, target or "y")

    @classmethod
    def of_known_sites(
        cls, X: Floats, sites: Array, y: Floats | None = None
    ) -> tuple[Federation, Indices]:
        """A federation of rows whose sites' canonical names are known; and where each row went."""
        distinct, codes = np.unique(sites.astype(str), return_inverse=True)
        order = sorted(range(len(distinct)), key=lambda i: name_order(str(distinct[i])))
        codes = np.argsort(order)[codes] if len(order) else codes
        rows = np.argsort(codes, kind="stable")
        names = tuple(str(distinct[i]) for i in order)
        made = cls._checked(
            X[rows],
            _offsets(np.bincount(codes, minlength=len(names))),
            names,
            None if y is None else y[rows],
            plain_names(X.shape[1]),
            None if y is None else "y",
            rows,
        )
        return made, np.argsort(rows)

    @classmethod
    def _checked(
        cls,
        X: Floats,
        offsets: Indices,
        names: tuple[str, ...],
        y: Floats | None,
        features: tuple[str, ...],
        target_name: str | None,
        rows: Indices | None = None,
        of_table: int = 0,
    ) -> Federation:
        made = cls(
            np.ascontiguousarray(X),
            offsets,
            names,
            y,
            features,
            target_name,
            np.arange(len(X)) if rows is None else rows,
            of_table=of_table,
        )
        errors = [finding for finding in made.findings if finding.level == "error"]
        if errors:
            raise FederationError(errors)
        return made

    # ---------------------------------------------------------------- facts

    @property
    def n_clients(self) -> int:
        """Number of sites m."""
        return len(self.names)

    @property
    def n_features(self) -> int:
        """Number of features d."""
        return int(self.X.shape[1])

    @cached_property
    def sizes(self) -> Indices:
        """Rows per client, (m,)."""
        return np.diff(self.offsets)

    @cached_property
    def owner(self) -> Indices:
        """The client of every row, (N,)."""
        return np.repeat(np.arange(self.n_clients), self.sizes)

    @cached_property
    def groups(self) -> NDArray[np.object_]:
        """The name of every row's site, (N,), in the order of `X` and `y`."""
        return np.array(self.names, dtype=object)[self.owner]

    @cached_property
    def given_order(self) -> Indices:
        """Where in this federation the first, second, ... row stands of the table it is made from.

        Estimators predict a federation in this order: one made from a table (`from_groups`,
        `from_frame`) in that of the table, so that predictions can be put beside it; any other,
        such as a part from `split`, in its own, that of `X` and `y`.
        """
        whole = len(self.X) > 0 and self.of_table == len(self.X)
        return np.argsort(self.rows, kind="stable") if whole else np.arange(len(self.X))

    def __len__(self) -> int:
        return self.n_clients

    def __repr__(self) -> str:
        target = "" if self.y is None else f", target {self.target_name!r}"
        return (
            f"Federation({self.n_clients} sites, {len(self.X)} rows, {self.n_features} features"
            f"{target})"
        )

    def _repr_html_(self) -> str:
        sites = Table({"site": list(self.names), "rows": self.sizes}, repr(self))
        return sites._repr_html_()

    def client(self, k: int) -> tuple[Floats, Floats | None]:
        """Rows and target of one client."""
        rows = slice(self.offsets[k], self.offsets[k + 1])
        return self.X[rows], None if self.y is None else self.y[rows]

    def take(self, who: ArrayLike) -> Federation:
        """The federation of some clients, in the order given."""
        chosen = np.asarray(who, dtype=np.intp)
        return self._rows_of(_ranges(self.offsets[chosen], self.sizes[chosen]), chosen)

    def pooled(self, name: str = "all") -> Federation:
        """One client that holds all rows."""
        return replace(self, offsets=np.array([0, len(self.X)]), names=(name,))

    def _rows_of(self, rows: Indices, clients: Indices) -> Federation:
        counts = np.bincount(
            np.searchsorted(self.offsets, rows, side="right") - 1, minlength=self.n_clients
        )
        return Federation(
            self.X[rows],
            _offsets(counts[clients]),
            tuple(self.names[k] for k in clients),
            None if self.y is None else self.y[rows],
            self.feature_names,
            self.target_name,
            self.rows[rows] if len(self.rows) else self.rows,
            weights=None if self.weights is None else self.weights[rows],
            encoding=self.encoding,
        )

    def with_weights(self, weights: ArrayLike) -> Federation:
        """The federation whose rows count by `weights`, in the order of the data it was made from.

        A row of weight w has noise of variance sigma^2 / w; rows of weight zero are left out.
        """
        given = np.asarray(weights, dtype=np.float64)
        if given.shape != (len(self.X),):
            raise ValueError(
                f"sample_weight has shape {given.shape}; there must be one weight for each of the "
                f"{len(self.X)} rows"
            )
        own = np.empty_like(given)
        own[self.given_order] = given
        bad = ~(np.isfinite(own) & (own >= 0))
        if bad.any():
            site = self.names[int(self.owner[np.argmax(bad)])]
            fact = f"{int(bad.sum())} weights are negative, missing or infinite"
            raise FederationError([Finding("error", site, fact, "give weights of at least 0")])
        kept = np.flatnonzero(own > 0)
        if not len(kept):
            raise ValueError("all weights are zero: no row is left; give some row a weight")
        return replace(self._rows_of(kept, np.arange(self.n_clients)), weights=own[kept])

    # ---------------------------------------------------------------- checks

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What the checks found, errors first."""
        return (*self._value_errors(), *self._warnings())

    @cached_property
    def off_centre(self) -> tuple[int, ...]:
        """Positions of columns that vary by next to nothing beside their mean."""
        if len(self.X) == 0 or not np.isfinite(self.X).all():
            return ()
        found: list[int] = []
        for begin in range(0, self.n_features, COLUMNS_AT_ONCE):
            # Sums along rows of a few columns are slow; turned, each column is one run of memory.
            columns = np.ascontiguousarray(self.X[:, begin : begin + COLUMNS_AT_ONCE].T)
            with np.errstate(over="ignore", invalid="ignore"):
                mean, spread = np.abs(columns.mean(axis=1)), columns.std(axis=1)
            varies = columns.max(axis=1) > columns.min(axis=1)
            found += (begin + np.flatnonzero(varies & (mean > OFF_CENTRE * spread))).tolist()
        return tuple(found)

    def _value_errors(self) -> Iterator[Finding]:
        columns = [(f"column {name!r}", self.X[:, j]) for j, name in enumerate(self.feature_names)]
        if self.y is not None:
            columns.append((f"target {self.target_name!r}", self.y))
        if len(self.X) == 0:
            yield Finding("error", None, "no site has any row", "give at least one row")
        if np.isfinite(self.X).all() and (self.y is None or np.isfinite(self.y).all()):
            return
        yield from value_errors(columns, self.owner, self.names, "before fitting")

    def _warnings(self) -> Iterator[Finding]:
        for k in np.flatnonzero(self.sizes == 0):
            yield Finding(
                "warning", self.names[k], "has no rows", "it takes no part; leave it out or fill it"
            )
        tiny = np.flatnonzero((self.sizes > 0) & (self.sizes <= self.n_features))
        if len(tiny):
            shown = ", ".join(repr(self.names[k]) for k in tiny[:3])
            yield Finding(
                "warning",
                None,
                f"{len(tiny)} of {self.n_clients} sites have no more rows than there are features "
                f"({self.n_features}), for example {shown}",
                "a fit at such a site alone is not determined; methods that share statistics cope",
            )
        if len(self.X) == 0:
            return
        yield from self._hopeless()
        for j in self.off_centre:
            yield Finding(
                "warning",
                None,
                f"column {self.feature_names[j]!r} has a mean of {self.X[:, j].mean():.3g} beside "
                f"a spread of {self.X[:, j].std():.3g}",
                "centre the column (subtract one number near its mean at all sites), or sums of "
                "products lose it in rounding",
            )
        full = np.flatnonzero(self.sizes > 1)
        if not len(full):
            return
        maybe, spread = self._spreads_that_may_be_zero(full)
        at_some: dict[str, list[str]] = {}
        between: list[str] = []
        for j, name in enumerate(self.feature_names):
            constant = maybe[spread[:, j] == 0]
            if len(constant) == len(full) and np.ptp(self.X[:, j]) > 0:
                between.append(name)
            elif len(constant) == len(full):
                fact = f"column {name!r} is constant at every site, and the same"
                yield Finding("warning", None, fact, "drop it: it can tell nothing")
            elif len(constant):
                at_some[name] = [self.names[k] for k in constant]
        remedy = (
            "methods with a model for each site cannot use it; a mixed model can: there it may "
            "tell why sites differ"
        )
        for fact in constant_at_all(between):
            yield Finding("warning", None, fact, remedy)
        for fact in constant_at_some(at_some):
            yield Finding("warning", None, fact, "its effect is not determined there alone")

    def _hopeless(self) -> Iterator[Finding]:
        """A target that says nothing, and columns whose squares are no numbers any more."""
        if self.y is not None and len(self.y) > 1 and np.ptp(self.y) == 0:
            fact = f"target {self.target_name!r} is {self.y[0]:g} in every row"
            yield Finding("warning", None, fact, "there is nothing to learn; take another target")
        words = [f"column {self.feature_names[j]!r}" for j in self._too_large()]
        if self.y is not None and np.abs(self.y).max() > TOO_LARGE:
            words.append(f"target {self.target_name!r}")
        for word in words:
            fact = f"{word} has values beyond {TOO_LARGE:g}"
            yield Finding("warning", None, fact, "squares overflow; measure it in a larger unit")

    def _too_large(self) -> list[int]:
        """Columns whose squares are no numbers any more."""
        return np.flatnonzero(np.abs(self.X).max(axis=0) > TOO_LARGE).tolist()

    def _spreads_that_may_be_zero(self, full: Indices) -> tuple[Indices, Floats]:
        """Those clients of `full` that may have a constant column, and the spread of each column.

        All have two rows or more; where the first two differ in every column, none is constant.
        """
        starts = self.offsets[:-1][full]
        alike = (self.X[starts] == self.X[starts + 1]).any(axis=1)
        maybe = full[alike]
        if not len(maybe):
            return maybe, np.zeros((0, self.n_features))
        rows = self.X[_ranges(starts[alike], self.sizes[maybe])]
        cuts = _offsets(self.sizes[maybe])[:-1]
        with np.errstate(invalid="ignore"):  # infinite values have their own finding
            return maybe, np.maximum.reduceat(rows, cuts) - np.minimum.reduceat(rows, cuts)

    # ---------------------------------------------------------------- splits and buckets

    def split(
        self,
        test: float = 0.2,
        by: Literal["rows", "clients"] = "rows",
        random_state: int = 0,
    ) -> tuple[Federation, Federation]:
        """Two federations (train, test): within every client, or leaving whole clients out.

        Within clients, a row's side depends on the seed and its client's name and size alone, and
        every client keeps at least one row for training. Leaving clients out, `test` of them go:
        each has a lot that depends on the seed and its name alone, but whether the lot is among
        the smallest depends on who else is there.
        """
        if not 0 <= test <= 1:
            raise ValueError(f"test must be a share between 0 and 1, not {test}")
        keys = name_keys(self.names, random_state)
        if by == "clients":
            draw = uniforms(keys, 1)[:, 0]
            out = np.zeros(self.n_clients, dtype=bool)
            out[np.argsort(draw)[: round(test * self.n_clients)]] = True
            return self.take(np.flatnonzero(~out)), self.take(np.flatnonzero(out))
        if by != "rows":
            raise ValueError(f"by must be 'rows' or 'clients', not {by!r}")
        within = np.arange(len(self.X)) - self.offsets[:-1][self.owner]
        draw = row_uniforms(keys[self.owner], within.astype(np.uint64))
        order = np.lexsort((draw, self.owner))
        rank = np.empty(len(order), dtype=np.intp)
        rank[order] = within
        n_test = np.minimum(np.round(test * self.sizes), np.maximum(self.sizes - 1, 0))
        out = rank < n_test[self.owner]
        everyone = np.arange(self.n_clients)
        return (
            self._rows_of(np.flatnonzero(~out), everyone),
            self._rows_of(np.flatnonzero(out), everyone),
        )

    def buckets(
        self, ratio: float = BUCKET_RATIO, elements: int = BUCKET_ELEMENTS
    ) -> Iterator[Bucket]:
        """Clients with rows, in groups of similar size, so that padding costs little.

        The rows of a group, with one more column, are at most so many `elements`, unless they are
        those of a single client.
        """
        order = np.argsort(self.sizes, kind="stable")
        order = order[np.searchsorted(self.sizes[order], 1) :]
        sizes = self.sizes[order]
        first = 0
        while first < len(order):
            last = int(np.searchsorted(sizes, int(sizes[first] * ratio), side="right"))
            width = int(sizes[last - 1])
            step = max(1, elements // (width * (self.n_features + 1)))
            for begin in range(first, last, step):
                chosen = order[begin : min(begin + step, last)]
                yield Bucket(chosen, self.offsets[:-1][chosen], self.sizes[chosen], width)
            first = last


def _no_row_is_whole(
    X: Floats, y: Floats | None, features: Sequence[str], target: str | None
) -> list[Finding]:
    """What to say where every row lacks a number: which columns are to blame."""
    lacking = np.isnan(X).mean(axis=0)
    worst = np.argsort(-lacking, kind="stable")[:3]
    told = [f"column {features[j]!r} lacks {lacking[j]:.0%}" for j in worst if lacking[j] > 0]
    if y is not None and np.isnan(y).any():
        told.append(f"target {target!r} lacks {np.isnan(y).mean():.0%}")
    fact = f"every row lacks a number ({', '.join(told)}), so that no row is left"
    return [Finding("error", None, fact, "leave such columns out, or impute them")]


def _offsets(counts: Array) -> Indices:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)


def _ranges(starts: Indices, sizes: Indices) -> Indices:
    """start, start + 1, ... (size of them) for every start and size, one after another."""
    ends = np.cumsum(sizes)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)
    index: Indices = np.repeat(starts, sizes) + within
    return index
