"""Tools as builders declare them: schemas, handlers, toolkits, results and failures."""
