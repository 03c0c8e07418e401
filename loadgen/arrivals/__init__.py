"""When requests arrive: seeded, pure schedules as ascending offsets in seconds; they know no HTTP and read no clock."""
