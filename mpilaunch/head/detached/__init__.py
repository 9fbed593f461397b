"""Jobs without a terminal: a process keeps what their head prints and how it ended, in files of their user."""
