"""Tools: how models write calls, how calls are forced, and how they are read from text as it comes."""
