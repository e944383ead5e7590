// Command kubectl-1.33 is the kubectl of Kubernetes 1.33, the oldest that is supported against a
// cluster of today's version plus one, as its own release is built.
package main

import (
	_ "time/tzdata" // CronJobs name time zones, and the machine may have no database of them

	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
}
