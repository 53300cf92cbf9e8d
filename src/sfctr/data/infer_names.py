"""What the name of a column suggests. A name only decides where the values alone leave it open."""

from __future__ import annotations

import re

_ID_WORD = re.compile(
    "ids?|uid|uuid|guid|key|code|hash|type|class|group|cluster|label|tag|cat"  # what an id is called
    "|users?|items?|ads?|products?|sku|campaign|creative|advertiser|publisher|brand|category"  # who, and what is shown
    "|genre|movie|song|artist|book|shop|store|seller|banner|gender|sex|occupation"
    "|site|app|domain|page|channel|device|model|os|browser|ip|cookie|session|query"  # where, and on what
    "|city|country|region|state|zip|zipcode|postcode|pos|position"
)
_NUMBER_WORD = re.compile(
    "counts?|cnt|num|number|n|qty|quantity|total|sum|avg|mean|median|rate|ratio|scores?|rating|value|ctr"
    "|prices?|cost|amount|amt|budget|bid|revenue|income|salary|age|year|days|minutes|seconds|duration|time|ts"
    "|len|length|size|distance|dist|weight|height|width|lat|lon|latitude|longitude|impressions|clicks|views|dense|int"
)
_TIME_WORD = re.compile("time|timestamp|ts|date|datetime|day|hour|when|created|updated|unixtime|epoch")


def name_words(name: str) -> list[str]:
    """The words of "userId", "user_id" or "User ID"; the "C14" and "I3" of Criteo's logs are an id and a count."""
    if re.fullmatch(r"[cC]\d+", name):
        return ["id"]
    if re.fullmatch(r"[iI]\d+", name):
        return ["count"]
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def names_number(name: str) -> bool:
    """Whether a column of this name holds amounts: "price", "num_clicks", "user_age"."""
    words = name_words(name)
    return bool(words) and (_is(_NUMBER_WORD, words[-1]) or words[0] in ("num", "n", "count", "avg", "total"))


def names_id(name: str) -> bool:
    """Whether a column of this name holds ids: "user_id", "C14", "site category"."""
    return not names_number(name) and any(_is(_ID_WORD, word) for word in name_words(name))


def names_time(name: str) -> bool:
    """Whether a column of this name holds times: "timestamp", "created_at"."""
    return any(_is(_TIME_WORD, word) for word in name_words(name))


def _is(pattern: re.Pattern[str], word: str) -> bool:
    return pattern.fullmatch(word) is not None
