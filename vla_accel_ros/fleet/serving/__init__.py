"""The scheduler of a fleet (scheduler) and its options (settings). members: the robots. judging: which of
them are admitted. records: what is known of each robot. rhythms: when each asks. queue: the waiting requests.
dispatch, slowness: which request goes to which replica. completion: results and failures.
questions: text."""
