DROP FUNCTION fence.protect(regclass, text, text, text, text);
DROP FUNCTION fence.unprotect(regclass);
DROP VIEW fence.uncovered;
DROP FUNCTION fence.forget(regclass);
DROP FUNCTION fence.remember(regclass);
DROP TABLE fence.registry;
DROP VIEW fence.protected;
DROP FUNCTION fence.ancestors(regclass);
DROP FUNCTION fence.family(regclass);
