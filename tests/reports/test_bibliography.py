"""Citations by key are shown as references."""

import pytest

from slowlink.reports import bibliography, methods
from slowlink.reports.bibliography import cited, readable, references
from tests.test_bibliography import ENTRIES


def test_every_entry_has_what_a_reader_needs():
    assert list(references()) == ENTRIES
    for key, one in references().items():
        assert one.title and (one.authors and one.year or key == "dds")
        assert not set(f"{one.label}{one.authors}{one.title}") & set("{}\\\n")
        assert not one.link or one.link.startswith("https://")


def test_accents_names_and_links():
    found = references()
    assert found["strom2015scalable"].authors == "Nikko Ström"
    mikolov = found["mikolov2010recurrent"]
    assert mikolov.authors == (
        "Tomáš Mikolov, Martin Karafiát, Lukáš Burget, Jan Černocký, Sanjeev Khudanpur"
    )
    assert mikolov.label == "Mikolov 2010" and mikolov.link == ""
    assert found["xiao2017fashion"].link == "https://arxiv.org/abs/1708.07747"
    assert found["lecun1998gradient"].link == "https://doi.org/10.1109/5.726791"
    assert found["li2020geomx"].title == (
        "Geo-Distributed Machine Learning: Framework and Technology Exceeding LAN Speed"
    )
    assert found["dds"].label == "dds"


def test_a_text_names_its_references_by_label():
    text = "LPSP §1 (ASP [8], [@dean2012large]); DDS [@dds]; again [@dean2012large]"
    assert readable(text) == "LPSP §1 (ASP [8], [Dean 2012]); DDS [dds]; again [Dean 2012]"
    assert cited(text) == [references()["dean2012large"], references()["dds"]]
    with pytest.raises(KeyError, match="nobody"):
        cited("[@nobody]")


@pytest.mark.slow
def test_cards_have_the_references_of_their_source():
    card = methods.card("synchronization", "asp")
    assert card.source == "LPSP §1 (ASP [8], [Dean 2012])"
    assert card.references == [bibliography.references()["dean2012large"]]
