package core

import "github.com/fencegate/fencegate/fence"

// ValidateArmings checks what is armed in one call. The error is a [*fence.InvalidError].
func ValidateArmings(all []fence.Arming) error {
	if len(all) == 0 {
		return &fence.InvalidError{Field: "resources", Reason: "are missing"}
	}
	for i, a := range all {
		if err := a.Validate(); err != nil {
			return err
		}
		for _, other := range all[:i] {
			if other.Resource == a.Resource {
				return &fence.InvalidError{Field: "resources", Reason: "name one resource twice"}
			}
		}
	}
	return nil
}
