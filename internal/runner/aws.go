package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fencegate/fencegate/client/wire"
)

// wrapper stands before the AWS command line, whose versions before 2.13 read no
// AWS_ENDPOINT_URL_S3 and would send the lease's credentials to AWS.
const wrapper = `#!/bin/sh
# fencegate run: versions of aws before 2.13 do not read AWS_ENDPOINT_URL_S3.
for argument; do
  case $argument in
    --endpoint-url | --endpoint-url=*) exec %[1]s "$@" ;;
  esac
done
for argument; do
  case $argument in
    s3 | s3api) exec %[1]s --endpoint-url "$AWS_ENDPOINT_URL_S3" "$@" ;;
  esac
done
exec %[1]s "$@"
`

// awsFiles writes what brings tools of AWS to the gateway into a private folder, and
// returns the variables that name it: a configuration, and a wrapper where the command
// would find the AWS command line. There is no secret in them.
func awsFiles(home string, issued wire.Credentials, inherited []string) (map[string]string, error) {
	config := filepath.Join(home, "config")
	text := fmt.Sprintf("[default]\nregion = %s\nendpoint_url = %s\ns3 =\n  addressing_style = path\n", issued.Region, issued.EndpointURL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("configuration for S3 tools: %w", err)
	}
	set := map[string]string{"AWS_CONFIG_FILE": config}
	path := value(inherited, "PATH")
	aws := inPath(path, "aws")
	if aws == "" {
		return set, nil
	}
	bin := filepath.Join(home, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		return nil, fmt.Errorf("wrapper of aws: %w", err)
	}
	quoted := "'" + strings.ReplaceAll(aws, "'", `'\''`) + "'"
	if err := os.WriteFile(filepath.Join(bin, "aws"), fmt.Appendf(nil, wrapper, quoted), 0o700); err != nil { //nolint:gosec // it is to be run
		return nil, fmt.Errorf("wrapper of aws: %w", err)
	}
	set["PATH"] = bin + string(os.PathListSeparator) + path
	return set, nil
}

// inPath is where a command is found that has another PATH than this process; "": nowhere.
func inPath(path, name string) string {
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && filepath.IsAbs(dir) && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file
		}
	}
	return ""
}
