"""Texts to be extracted under a JSON schema."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """A schema, and what is asked of each text."""

    schema: dict[str, Any]
    prompts: tuple[str, ...]


_TEXT, _SHORT = {"type": "string", "maxLength": 40}, {"type": "string", "maxLength": 20}
_FIELDS: dict[str, Any] = {
    "customer_identifier": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{5}$"},
    "full_name_of_the_customer": _TEXT,
    "electronic_mail_address": _TEXT,
    "telephone_number_with_country_code": _SHORT,
    "street_and_house_number": _TEXT,
    "postal_code_of_the_delivery_address": _SHORT,
    "city_of_the_delivery_address": _SHORT,
    "country_of_the_delivery_address": _SHORT,
    "name_of_the_ordered_product": _TEXT,
    "quantity_of_the_ordered_product": {"type": "integer", "minimum": 1, "maximum": 999},
    "price_per_unit_in_euros": {"type": "number", "minimum": 0, "maximum": 9999},
    "requested_date_of_delivery": {"type": "string", "format": "date"},
    "preferred_method_of_payment": {"enum": ["invoice", "credit card", "bank transfer", "cash on delivery"]},
    "is_a_returning_customer": {"type": "boolean"},
    "additional_remarks_of_the_customer": {"type": ["string", "null"], "maxLength": 60},
}
_ORDER = {"type": "object", "properties": _FIELDS, "required": [*_FIELDS], "additionalProperties": False}
_LETTERS = (
    "Dear shop, I am Maria Sandoval (customer DE-48213, maria.s@example.org, +49 30 5557812). Please send 12 oak "
    "shelves at 49.90 euros to Lindenstrasse 14, 10969 Berlin, Germany, by 2025-03-14. I pay by invoice.",
    "Hello, Jonas Weber here, first order. Could I have 3 copies of the blue desk lamp (24.50 euros) delivered to "
    "Rue du Lac 8, 1207 Geneva, Switzerland on 2025-04-02? Card is fine. j.weber@example.com, +41 22 5550199, CH-1007.",
    "Order from FR-90310, Claire Dubois: 150 ceramic tiles, 3.20 euros a piece, for 9 Avenue Foch, 69006 Lyon, France. "
    "Needed on 2025-05-20; bank transfer. Call +33 4 5550 3321 or write to c.dubois@example.fr. Please ring twice.",
    "Hi again! Tom O'Brien, IE-22871. Two garden benches, 189 euros each, to 5 Harbour Road, D04 Dublin, Ireland, "
    "before 2025-06-30, cash on delivery. My number is +353 1 555 7420 and my mail tom.obrien@example.ie.",
)
_SERVICE = {
    "type": "object",
    "properties": {
        "service": _SHORT,
        "severity": {"enum": ["minor", "major", "critical"]},
        "minutes_of_downtime": {"type": "integer", "minimum": 0, "maximum": 9999},
    },
    "required": ["service", "severity", "minutes_of_downtime"],
    "additionalProperties": False,
}
_INCIDENT = {
    "type": "object",
    "properties": {
        "title": _TEXT,
        "reported_by": {
            "type": "object",
            "properties": {"name": _SHORT, "team": {"enum": ["operations", "support", "development"]}},
            "required": ["name", "team"],
            "additionalProperties": False,
        },
        "date": {"type": "string", "format": "date"},
        "affected_services": {"type": "array", "items": _SERVICE, "minItems": 1, "maxItems": 3},
        "cause": _TEXT,
        "is_resolved": {"type": "boolean"},
        "follow_up": {"type": "array", "items": _TEXT, "maxItems": 2},
    },
    "required": ["title", "reported_by", "date", "affected_services", "cause", "is_resolved"],
    "additionalProperties": False,
}
_MESSAGES = (
    "On 2025-02-11 the checkout was down for 42 minutes and search was slow for 15. Priya from operations saw it: "
    "a certificate had expired. It is renewed; we should add an alert for certificates.",
    "Login failed for everybody on 2025-03-02, from 9:10 to 10:05. Reported by Tomas of the support team. The identity "
    "provider had changed its keys. Solved by a restart. Follow-up: reload keys each hour, and write a runbook.",
    "Lena (development) noticed on 2025-04-19 that invoices weren't sent. Mail and billing failed for 310 and 95 "
    "minutes; the queue's disk was full. Mail still isn't back to normal.",
    "2025-05-23, reported by Omar from operations: the map and the export stopped for 20 minutes after a release with "
    "a wrong address of the database. It was rolled back at once.",
)
TASKS = {
    "order": Task(_ORDER, tuple(f"Extract the order as JSON.\n\n{letter}" for letter in _LETTERS)),
    "incident": Task(_INCIDENT, tuple(f"Extract the incident as JSON.\n\n{message}" for message in _MESSAGES)),
}
