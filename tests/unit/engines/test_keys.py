from dflash_pack.engines.keys import Keys


def test_only_keys_that_nobody_read_are_unread():
    keys = Keys({"a": 1, "b": None, "c": 3})
    assert keys.get("a") == 1
    assert keys.has("b")
    assert keys.get("missing", 7) == 7
    assert keys.unread() == ("c",)


def test_a_section_shares_the_memory_and_is_reported_leaf_by_leaf():
    keys = Keys({"section": {"a": 1, "b": 2}})
    keys.section("section").get("a")
    assert keys.unread() == ("section.b",)


def test_a_section_of_which_nothing_was_read_is_reported_as_one():
    assert Keys({"section": {"a": 1, "b": 2}}).unread() == ("section",)


def test_reading_a_section_whole_covers_all_of_it():
    keys = Keys({"section": {"a": 1, "b": {"c": 2}}})
    keys.get("section")
    assert keys.unread() == ()


def test_a_section_that_is_no_object_reads_as_empty():
    keys = Keys({"section": [1, 2]})
    assert keys.section("section").get("a") is None


def test_forgetting_a_key_makes_it_ignored_again():
    keys = Keys({"a": 1})
    keys.get("a")
    keys.forget("a")
    assert keys.unread() == ("a",)
