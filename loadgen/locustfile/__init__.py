"""For people's own locustfiles: two user classes, and what makes of a run under plain Locust the same run folder."""
