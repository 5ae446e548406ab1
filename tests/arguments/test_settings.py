"""What can be set is checked where it is set, and sites see their part of it only."""

import copy
from typing import ClassVar

import numpy as np
import pytest

from fedkin.settings import FRACTION, Flag, Number, Settings, Start, Whole, one_of, setting


class Oven(Settings):
    degrees: float = setting(180.0, Number(above=0.0, most=300.0), at_site=True)
    minutes: int | None = setting(None, Whole(or_none=True))
    fan: bool = setting(True, Flag())
    heat: str = setting("both", one_of("both", "above", 1))
    share: float = setting(1.0, FRACTION)
    start: object = setting("cold", Start(("cold", "warm"), least_axes=1))

    presets: ClassVar = {"pizza": {"degrees": 300.0, "minutes": 8}}

    def check_together(self):
        if self.fan and self.heat == "above":
            raise ValueError("the fan needs heat from below")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"degrees": 0}, "degrees must be above 0 and at most 300, not 0"),
        ({"degrees": float("nan")}, "degrees must be above 0 and at most 300, not nan"),
        ({"degrees": "hot"}, "degrees must be a number, not 'hot'"),
        ({"minutes": 0}, "minutes must be at least 1, not 0"),
        ({"minutes": 2.5}, "minutes must be a whole number, not 2.5"),
        ({"minutes": True}, "minutes must be a whole number, not True"),
        ({"fan": "yes"}, "fan must be True or False, not 'yes'"),
        ({"heat": "below"}, "heat must be one of 'both', 'above', 1, not 'below'"),
        ({"heat": True}, "heat must be one of 'both', 'above', 1, not True"),
        ({"share": 1.5}, "share must be above 0 and at most 1, not 1.5"),
        ({"start": "hot"}, "start must be one of 'cold', 'warm', not 'hot'"),
        (
            {"start": [1.0, np.inf]},
            r"start has entries that are not finite \(1, the first at \[1\]",
        ),
        ({"heat": "above"}, "the fan needs heat from below"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name_and_value(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        Oven(**change)


def test_values_are_kept_as_they_will_be_used():
    oven = Oven(degrees=np.float32(200), minutes=np.int64(3), fan=1, start=5)
    assert (type(oven.degrees), type(oven.minutes), oven.fan) == (float, int, True)
    np.testing.assert_array_equal(oven.start, [5.0])


def test_presets_mappings_and_replacements_are_checked_like_everything_else():
    pizza = Oven.preset("pizza", fan=False)
    assert (pizza.degrees, pizza.minutes, pizza.fan) == (300.0, 8, False)
    assert Oven.from_mapping(pizza.to_mapping()).to_mapping() == pizza.to_mapping()
    assert pizza.replace(minutes=9).minutes == 9
    with pytest.raises(ValueError, match="degrees must be"):
        pizza.replace(degrees=301)
    with pytest.raises(ValueError, match="Oven has no setting degree"):
        Oven.from_mapping({"degree": 1.0})
    with pytest.raises(AttributeError, match="cannot assign"):
        pizza.minutes = 10


def test_sites_see_their_part_and_asking_for_more_says_what_to_do():
    part = Oven(degrees=250.0).for_sites()
    assert part.to_mapping() == {"degrees": 250.0}
    with pytest.raises(AttributeError, match=r"do not see the setting 'minutes'.*at_site=True"):
        _ = part.minutes
    with pytest.raises(AttributeError, match="Oven has no setting 'colour'"):
        _ = part.colour


def test_a_site_takes_exactly_its_part_and_checks_it_again():
    assert Oven.at_site({"degrees": 99}).degrees == 99.0
    with pytest.raises(ValueError, match="other settings than were sent: minutes"):
        Oven.at_site({"degrees": 99, "minutes": 1})
    with pytest.raises(ValueError, match="other settings than were sent: degrees"):
        Oven.at_site({})
    with pytest.raises(ValueError, match="degrees must be"):
        Oven.at_site({"degrees": 999})


def test_settings_can_be_copied():
    assert copy.deepcopy(Oven(degrees=250.0)).degrees == 250.0
    assert copy.copy(Oven().for_sites()).to_mapping() == {"degrees": 180.0}
