"""An agent around another agent: the daemons connect back to the head."""
