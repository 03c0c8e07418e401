"""Side by side: load tools against one server of known timing, what each reports beside what was true."""
