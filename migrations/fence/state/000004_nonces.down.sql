-- Forgets which nonces are spent: a program that was superseded gets a new token when it connects again.
DROP TABLE fence.nonces;
COMMENT ON SCHEMA fence IS 'fencegate fence state 3';
