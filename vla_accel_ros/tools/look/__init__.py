"""`vla look`: what a robot sees, wants and does, in a browser or as one PNG, live or from a bag; `vla plot`.

`scene` keeps the messages of one robot and says what was known at a time; `live` and `recorded` fill it;
`pictures` makes images as the network gets them; `server` and `page.html` show it.
"""
