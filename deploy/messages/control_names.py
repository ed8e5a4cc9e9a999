"""The names of the requests that whoever runs a cluster takes itself."""

STOP = "stop"
DESCRIBE = "describe"
