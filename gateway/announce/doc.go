// Package announce tells gateways of one database about each other's armings, by NOTIFY, so that each ends its sessions
// with an older grant.
//
// An announcement is a hint: any login can send one, so who receives it asks the fence. A periodic look finds what a lost
// announcement missed.
package announce
