"""Step Functions of the one-machine cloud: JSONata machines, Distributed Map, what AWS refuses refused."""
