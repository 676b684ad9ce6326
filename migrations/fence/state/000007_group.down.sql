-- Forgets which keys on the Redis nodes are this database's. A later migration makes it a new group, which sees no lock of before.
DROP TABLE fence.lock_group;
COMMENT ON SCHEMA fence IS 'fencegate fence state 6';
