DROP FUNCTION fence.protect(regclass, text, text, text, text);
DROP FUNCTION fence.unprotect(regclass);
DROP VIEW fence.uncovered;
DROP VIEW fence.protected;
DROP FUNCTION fence.family(regclass);
